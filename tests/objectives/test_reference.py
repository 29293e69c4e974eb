"""Objectives against tensors computed by their authors' own code: every case under tests/reference and DENSEIR_REFERENCE.

DENSEIR_REFERENCE lists folders, separated by colons; each is a case (it holds case.json) or holds cases.
"""

import dataclasses
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from denseir_jax.models import bert, decoders, lexical, names
from denseir_jax.models.decoders import DecoderConfig
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig, padded_vocab
from denseir_jax.objectives import masking
from denseir_jax.objectives.base import Context
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.cocondenser import CoCondenserConfig
from denseir_jax.objectives.losses import chunked_cross_entropy, mean
from denseir_jax.objectives.masked_text import Encoded, MaskedText
from denseir_jax.objectives.masking import Masked, Text
from denseir_jax.objectives.retromae import RetroMaeConfig

Tensors = dict[str, np.ndarray]
HERE = Path(__file__).resolve().parents[1] / "reference"
CLS, SEP, PAD, MASK = 2, 3, 0, 4
QUICK = {"xla_backend_optimization_level": 0}  # compile time is most of this test


def cases() -> Iterator[Path]:
    folders = [HERE, *(Path(part) for part in os.environ.get("DENSEIR_REFERENCE", "").split(":") if part)]
    for folder in folders:
        here = [folder] if (folder / "case.json").exists() else sorted(path.parent for path in folder.glob("*/case.json"))
        if not here:
            raise FileNotFoundError(f"no reference case in {folder}")
        # Vectors of a published model are no case of an objective: tests/models/test_minilm.py compares them.
        yield from (case for case in here if "texts" not in json.loads((case / "case.json").read_text()))


def condenser(case: dict[str, Any], weights: Tensors, inputs: Tensors) -> Tensors:
    """Losses, vectors and gradients of a Condenser or coCondenser case, under the names of the case."""
    encoder, context = model_of(case, inputs["input_ids"].shape[1])
    settings = {"skip_from": case["skip_from"], "n_head_layers": case["n_head_layers"], "late_mlm": case["late_mlm"]}
    pairs = case["method"] == "cocondenser"
    objective: Any = (CoCondenserConfig if pairs else BottleneckConfig)(**settings).build(context)
    # the case tells the backbone's loss where it is not trained, too
    both = dataclasses.replace(objective, config=dataclasses.replace(objective.config, late_mlm=True))
    params = from_hf(case, weights, encoder, {"head": case["n_head_layers"]})
    text, masked = text_of(inputs["input_ids"], inputs["attention_mask"]), given(inputs["input_ids"], inputs["labels"])

    def loss(params: Any) -> Any:
        encoded = encode(objective, params, text, masked)
        vectors, sums = objective.scored(params, encoded)
        batch = {"length": text.length, "document": jnp.arange(len(text.ids) // 2)}
        total, metrics = objective.over_batch(params, vectors, sums, batch)
        parts = {"backbone_mlm_loss": mean(both.score(params, encoded)[1]["late_mlm"])}
        if pairs:
            parts["contrastive_loss"] = mean(metrics["contrastive"])
        return total, parts | {"cls": encoded.cls}

    return found(loss, params, encoder, {"head": "c_head."})


def retromae(case: dict[str, Any], weights: Tensors, inputs: Tensors) -> Tensors:
    """Losses, vectors and gradients of RetroMAE's enhanced decoding, or of DupMAE."""
    encoder, context = model_of(case, inputs["decoder_input_ids"].shape[1])
    dup = case["method"] == "dupmae"
    objective: Any = RetroMaeConfig(bow_weight=case["bow_loss_weight"] if dup else 0.0, query_norm=dup).build(context)
    stacked = {name.replace("c_head.", "c_head.0."): tensor for name, tensor in weights.items()}
    params = from_hf(case, stacked, encoder, {"two_stream": 1})
    text = text_of(inputs["decoder_input_ids"], inputs["attention_mask"])
    np.testing.assert_array_equal(np.where(masking.text_tokens(text), text.ids, -100), inputs["decoder_labels"])
    if dup:
        np.testing.assert_allclose(
            lexical.bag(text.ids, masking.text_tokens(text), encoder.vocab_size, once=False), inputs["bow"], rtol=1e-7
        )
    masked = given(inputs["encoder_input_ids"], inputs["encoder_labels"])

    def loss(params: Any) -> Any:
        encoded = encode(objective, params, text, masked)
        vectors, sums = objective.score_seen(params, encoded, jnp.asarray(inputs["decoder_mask"]) == 1)
        total, _ = objective.over_batch(params, vectors, sums, {"length": text.length})
        parts = {"decoder_loss": mean(sums["decoder"]), "encoder_mlm_loss": mean(sums["mlm"]), "cls": encoded.cls}
        if dup:
            parts |= {"bow_loss": mean(sums["bow"]), "lexical": objective.lexical(params, encoded)}
        return total, parts

    out = found(loss, params, encoder, {"two_stream": "c_head."})
    return {name.replace("c_head.0.", "c_head."): value for name, value in out.items()}


def seed_decoder(case: dict[str, Any], weights: Tensors, inputs: Tensors) -> Tensors:
    """SEED's decoder alone, under fairseq's names."""
    flags = case["flags"]
    assert case["activation"] == "gelu" and not flags["no_cross_attention"], case
    assert all(flags[name] for name in flags if name != "no_cross_attention"), flags
    vocab, ids, targets = case["vocab"], jnp.asarray(inputs["input_ids"]), jnp.asarray(inputs["targets"])
    encoder = EncoderConfig(vocab, case["hidden"], heads=case["heads"], max_length=len(weights["embed_positions.weight"]) - 1, scan=True)
    config = DecoderConfig(case["layers"], case["window"], intermediate=len(weights["layers.0.fc1.bias"]))
    params = {"word": padded(weights["embed_tokens.weight"], vocab), "decoder": from_fairseq(weights, case["layers"])}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
    np.testing.assert_array_equal(weights["output_projection.weight"], weights["embed_tokens.weight"])

    def loss(params: Any, cls: Any) -> Any:
        states = decoders.decode(encoder, config, params["decoder"], params["word"], ids, cls)
        nll = chunked_cross_entropy(
            states.reshape(-1, states.shape[-1]), params["word"], jnp.zeros(len(params["word"])), targets.reshape(-1), vocab
        ).nll
        real = targets.reshape(-1) >= 0
        return jnp.where(real, nll, 0).sum() / real.sum(), {"stack_output": states, "logits": (states @ params["word"].T)[..., :vocab]}

    cls = jnp.asarray(inputs["cls"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bert, "gelu", fairseq_gelu if TORCH else float32_gelu)
        ((total, out), (gradients, to_cls)) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), compiler_options=QUICK)(params, cls)
    module, words = decoders.Decoder(encoder, config), params["word"][ids]
    seen: Any = module.apply({"params": params["decoder"]}, words, cls, None, capture_intermediates=True)[1]
    out["stack_input"] = seen["intermediates"]["embedding_norm"]["__call__"][0]
    out |= {"loss": total[None], "grad_cls": to_cls, "self_attention_mask": decoders.window_mask(ids.shape[1], config.window).astype(float)}
    gradient = to_fairseq(gradients["decoder"], case, weights) | {"embed_tokens.weight": np.asarray(gradients["word"])[:vocab]}
    return {name: np.asarray(value) for name, value in out.items()} | {f"grad/{name}": value for name, value in gradient.items()}


TORCH = importlib.util.find_spec("torch") is not None


@jax.custom_vjp
def fairseq_gelu(x: jax.Array) -> jax.Array:
    """Fairseq takes GELU in float32 whatever the dtype, and so did the authors' code in the case that is otherwise in float64.
    1e-9 can be told only by taking the very same roundings, forward and backward, which are torch's."""
    return _torch_gelu(x)


def float32_gelu(x: jax.Array) -> jax.Array:
    """Where torch is absent: the same, but for the last bits of a float32."""
    return jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype)


def _torch_gelu(x: jax.Array, gradient: jax.Array | None = None) -> jax.Array:
    import torch

    def values(*bits: Any) -> np.ndarray:
        x, *gradient = (torch.tensor(np.asarray(part).view(np.float64)[..., 0], requires_grad=True) for part in bits)
        out = torch.nn.functional.gelu(x.float()).double()
        if gradient:
            (out,) = torch.autograd.grad(out, x, *gradient)
        return out.detach().numpy()[..., None].view(np.uint32)

    # As bits: the thread that calls back does not know that float64 is enabled, and would round.
    bits = [jax.lax.bitcast_convert_type(part, jnp.uint32) for part in (x, gradient) if part is not None]
    out = jax.pure_callback(values, jax.ShapeDtypeStruct(bits[0].shape, jnp.uint32), *bits)
    return jax.lax.bitcast_convert_type(out, jnp.float64)


fairseq_gelu.defvjp(lambda x: (_torch_gelu(x), x), lambda x, gradient: (_torch_gelu(x, gradient),))


# Ours -> fairseq's, of a layer.
FAIRSEQ = {
    **{f"attention/{ours}": f"self_attn.{theirs}" for ours, theirs in zip(("query", "key", "value", "output"), "qkvo", strict=True)},
    "attention/norm": "self_attn_layer_norm",
    "cross/value": "encoder_attn.v",
    "cross/output": "encoder_attn.o",
    "ffn/up": "fc1",
    "ffn/down": "fc2",
    "ffn/norm": "final_layer_norm",
}
NORMS = {"embedding_norm": "layernorm_embedding", "norm": "layer_norm"}


def fairseq_name(theirs: str) -> str:
    head, dot, last = theirs.rpartition(".")
    return f"{head}.{'out' if last == 'o' else last}_proj" if dot and last in "qkvo" else theirs


def from_fairseq(weights: Tensors, layers: int) -> dict[str, Any]:
    tree: dict[str, Any] = {"position": weights["embed_positions.weight"][1:]}
    for ours, theirs in NORMS.items():
        tree[ours] = {"scale": weights[f"{theirs}.weight"], "bias": weights[f"{theirs}.bias"]}
    for path, theirs in FAIRSEQ.items():
        block, leaf = path.split("/")
        one = [
            (weights[f"layers.{n}.{fairseq_name(theirs)}.weight"], weights[f"layers.{n}.{fairseq_name(theirs)}.bias"])
            for n in range(layers)
        ]
        kernel = "scale" if leaf == "norm" else "kernel"
        values = {kernel: np.stack([w if leaf == "norm" else w.T for w, _ in one]), "bias": np.stack([b for _, b in one])}
        tree.setdefault("layers", {}).setdefault(block, {})[leaf] = values
    return tree


def to_fairseq(tree: Any, case: dict[str, Any], weights: Tensors) -> Tensors:
    tree = jax.tree.map(np.asarray, tree)
    out = {"embed_positions.weight": np.concatenate([np.zeros((1, case["hidden"])), tree["position"]])}
    for ours, theirs in NORMS.items():
        out |= {f"{theirs}.weight": tree[ours]["scale"], f"{theirs}.bias": tree[ours]["bias"]}
    for path, theirs in FAIRSEQ.items():
        block, leaf = path.split("/")
        values = tree["layers"][block][leaf]
        for n in range(case["layers"]):
            name = f"layers.{n}.{fairseq_name(theirs)}"
            out |= {f"{name}.weight": values["scale"][n] if leaf == "norm" else values["kernel"][n].T, f"{name}.bias": values["bias"][n]}
    # Attention to a single key does not depend on the query: what makes query and key has no gradient, and is not in our module.
    dead = re.compile(r"layers\.\d+\.encoder_attn(\.[qk]_proj|_layer_norm)\.")
    return out | {name: np.zeros(tensor.shape) for name, tensor in weights.items() if dead.match(name)}


def model_of(case: dict[str, Any], length: int) -> tuple[EncoderConfig, Context]:
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
    return encoder, Context(encoder, EmbedderConfig(), CLS, SEP, PAD, MASK, encoder.vocab_size, length, length, seed=0)


def text_of(ids: np.ndarray, attention_mask: np.ndarray) -> Text:
    tokens, length = jnp.asarray(ids), jnp.asarray(attention_mask.sum(1))
    return Text.of(tokens, length, jnp.ones_like(tokens), jnp.arange(len(tokens)), (CLS, SEP, PAD, MASK), seed=0)


def given(ids: np.ndarray, labels: np.ndarray) -> Masked:
    return masking.given(jnp.asarray(ids), jnp.asarray(labels))


def encode(objective: MaskedText, params: Any, text: Text, masked: Masked) -> Encoded:
    encoder = objective.context.encoder
    hidden = bert.encode(encoder, params["encoder"], masked.ids, text.length, collect=objective.reads_layers)
    return Encoded(text, masking.text_tokens(text), masked, hidden, None)


def found(loss: Any, params: Any, encoder: EncoderConfig, heads: dict[str, str]) -> Tensors:
    """The loss, its parts, and every gradient under the names of Hugging Face."""
    (total, parts), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK)(params)
    tree = jax.tree.map(np.asarray, gradients)
    out = names.encoder_to_hf(tree["encoder"], encoder.vocab_size, "lm.bert.")
    out |= names.mlm_head_to_hf(tree["mlm_head"], encoder.vocab_size, "lm.cls.predictions.")
    for head, prefix in heads.items():
        out |= names.layers_to_hf(tree.get(head, {}), prefix)
    return {name: np.asarray(value) for name, value in ({"loss": total} | parts).items()} | {f"grad/{name}": g for name, g in out.items()}


def from_hf(case: dict[str, Any], weights: Tensors, encoder: EncoderConfig, heads: dict[str, int]) -> dict[str, Any]:
    rows = padded_vocab(encoder.vocab_size)
    params: dict[str, Any] = {
        "encoder": names.encoder_from_hf(weights, encoder.layers, rows, "lm.bert."),
        "mlm_head": names.mlm_head_from_hf(weights, rows, True, "lm.cls.predictions."),
    }
    params |= {head: names.layers_from_hf(weights, layers, "c_head.") for head, layers in heads.items() if layers}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)


def padded(table: np.ndarray, vocab: int) -> np.ndarray:
    return np.pad(table, ((0, padded_vocab(vocab) - vocab), (0, 0)))


METHODS: dict[str, Callable[[dict[str, Any], Tensors, Tensors], Tensors]] = {
    "condenser": condenser,
    "cocondenser": condenser,
    "retromae_enhanced": retromae,
    "dupmae": retromae,
    "seed_decoder": seed_decoder,
}


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
        if case["method"] == "seed_decoder" and not TORCH:
            rtol, atol = 0, 1e-6 * max(np.abs(value).max(), 1e-3)
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


def test_an_unknown_method_fails(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text(json.dumps({"method": "telepathy"}))
    with pytest.raises(AssertionError, match="unknown method 'telepathy'"):
        test_reference_case(tmp_path)
