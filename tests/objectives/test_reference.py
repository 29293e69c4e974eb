"""Objectives against tensors computed by their authors' own code: every case under tests/reference and DENSEIR_REFERENCE.

DENSEIR_REFERENCE lists folders, separated by colons; each is a case (it holds case.json) or holds cases.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from denseir_jax.models import names
from denseir_jax.models.bert import EncoderConfig, padded_vocab
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.objectives import masking
from denseir_jax.objectives.base import Context
from denseir_jax.objectives.bottleneck import Bottleneck, CondenserConfig

Tensors = dict[str, np.ndarray]
HERE = Path(__file__).resolve().parents[1] / "reference"
CLS, SEP, PAD, MASK = 2, 3, 0, 4
QUICK = {"xla_backend_optimization_level": 0}  # compile time is most of this test


def cases() -> Iterator[Path]:
    folders = [HERE, *(Path(part) for part in os.environ.get("DENSEIR_REFERENCE", "").split(":") if part)]
    for folder in folders:
        found = [folder] if (folder / "case.json").exists() else sorted(path.parent for path in folder.glob("*/case.json"))
        if not found:
            raise FileNotFoundError(f"no reference case in {folder}")
        yield from found


def condenser(case: dict[str, Any], weights: Tensors, inputs: Tensors) -> Tensors:
    """Losses, vectors and gradients of a Condenser case, under the names of the case."""
    encoder, objective = condenser_of(case, inputs["input_ids"].shape[1])
    params = from_hf(case, weights, encoder)
    masked = masking.given(jnp.asarray(inputs["input_ids"]), jnp.asarray(inputs["labels"]))
    length = jnp.asarray(inputs["attention_mask"].sum(1))
    both = dataclasses.replace(objective, late_mlm=True)  # the case tells the backbone's loss where it is not trained, too

    def loss(params: Any) -> Any:
        vectors, sums = objective.score(params, masked, length, None)
        total, _ = objective.over_batch(params, vectors, sums, {"length": length})
        return total, (vectors, both.score(params, masked, length, None)[1]["late_mlm"])

    (total, (vectors, late)), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK)(params)
    out = {"loss": np.asarray(total), "cls": np.asarray(vectors["cls"]), "backbone_mlm_loss": np.asarray(late[0] / late[1])}
    return out | {f"grad/{name}": value for name, value in to_hf(gradients, encoder).items()}


def condenser_of(case: dict[str, Any], length: int) -> tuple[EncoderConfig, Bottleneck]:
    bert = case["bert"]
    assert bert["hidden_act"] == "gelu", f"activation {bert['hidden_act']} is not BERT's"
    encoder = EncoderConfig(
        vocab_size=bert["vocab_size"],
        hidden=bert["hidden_size"],
        layers=bert["num_hidden_layers"],
        heads=bert["num_attention_heads"],
        intermediate=bert["intermediate_size"],
        max_length=bert["max_position_embeddings"],
        types=bert["type_vocab_size"],
        eps=float(bert["layer_norm_eps"]),
        scan=True,  # the same numbers as unrolled, compiled sooner
    )
    context = Context(encoder, EmbedderConfig(), CLS, SEP, PAD, MASK, encoder.vocab_size, length, length, seed=0)
    config = CondenserConfig(skip_from=case["skip_from"], n_head_layers=case["n_head_layers"], late_mlm=case["late_mlm"])
    objective = config.build(context)
    assert isinstance(objective, Bottleneck)
    return encoder, objective


def from_hf(case: dict[str, Any], weights: Tensors, encoder: EncoderConfig) -> dict[str, Any]:
    rows = padded_vocab(encoder.vocab_size)
    params: dict[str, Any] = {
        "encoder": names.encoder_from_hf(weights, encoder.layers, rows, "lm.bert."),
        "mlm_head": names.mlm_head_from_hf(weights, rows, True, "lm.cls.predictions."),
    }
    if case["n_head_layers"]:
        params["head"] = names.layers_from_hf(weights, case["n_head_layers"], "c_head.")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)


def to_hf(params: Any, encoder: EncoderConfig) -> Tensors:
    tree = jax.tree.map(np.asarray, params)
    out = names.encoder_to_hf(tree["encoder"], encoder.vocab_size, "lm.bert.")
    out |= names.mlm_head_to_hf(tree["mlm_head"], encoder.vocab_size, "lm.cls.predictions.")
    return out | (names.layers_to_hf(tree["head"], "c_head.") if "head" in tree else {})


METHODS: dict[str, Callable[[dict[str, Any], Tensors, Tensors], Tensors]] = {"condenser": condenser}


@pytest.mark.parametrize("folder", list(cases()), ids=lambda folder: folder.name)
def test_reference_case(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    assert case["method"] in METHODS, f"{folder}: unknown method {case['method']!r}; known: {', '.join(METHODS)}"
    weights, inputs, expected = (load_file(folder / f"{name}.safetensors") for name in ("weights", "inputs", "expected"))
    with jax.enable_x64(True):
        found = METHODS[case["method"]](case, weights, inputs)
    lost = sorted(set(expected) - set(found))
    assert not lost, f"{folder}: nothing computed for {lost}"
    for name, value in expected.items():
        assert found[name].dtype == np.float64, name
        rtol, atol = (0, 1e-9) if "loss" in name else (1e-6, 1e-12)
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


def test_an_unknown_method_fails(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text(json.dumps({"method": "telepathy"}))
    with pytest.raises(AssertionError, match="unknown method 'telepathy'"):
        test_reference_case(tmp_path)
