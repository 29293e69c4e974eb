"""Names of Hugging Face BERT: round trips are exact, transposes are where they belong, what is missing is named."""

from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from denseir_jax.core.errors import InputError
from denseir_jax.models import bert, heads, names
from denseir_jax.models.shape import EncoderConfig

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
CONFIG = EncoderConfig(vocab_size=21, hidden=8, layers=2, heads=2, intermediate=12, max_length=9)


def random_like(init):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), jax.eval_shape(lambda: init(jax.random.key(0))))


def equal(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


def cropped(tree):
    """With zeros in the padded rows, which do not survive a round trip."""
    return jax.tree.map(
        lambda leaf: np.where(np.arange(128).reshape([-1] + [1] * (leaf.ndim - 1)) < 21, leaf, 0) if len(leaf) == 128 else leaf, tree
    )


@pytest.mark.parametrize("prefix", ["", "bert.", "lm.bert."])
def test_encoder_round_trip(prefix):
    params = cropped(random_like(lambda key: bert.init_encoder(CONFIG, key)))
    tensors = names.encoder_to_hf(params, 21, prefix)
    assert len(tensors) == 5 + 2 * 16 and all(name.startswith((f"{prefix}embeddings.", f"{prefix}encoder.layer.")) for name in tensors)
    assert tensors[f"{prefix}embeddings.word_embeddings.weight"].shape == (21, 8)
    assert tensors[f"{prefix}encoder.layer.1.intermediate.dense.weight"].shape == (12, 8)
    np.testing.assert_array_equal(
        tensors[f"{prefix}encoder.layer.1.attention.self.key.weight"], params["layers"]["attention"]["key"]["kernel"][1].T
    )
    equal(names.encoder_from_hf(tensors, 2, 128, prefix), params)


@pytest.mark.parametrize("tied", [True, False])
def test_head_round_trip(tied):
    config = EncoderConfig(vocab_size=21, hidden=8, layers=0, heads=2, tied_output=tied)
    head = cropped(random_like(lambda key: heads.init_mlm_head(config, key)))
    tensors = names.mlm_head_to_hf(head, 21)
    assert ("cls.predictions.decoder.weight" in tensors) != tied
    equal(names.mlm_head_from_hf(tensors, 128, tied), head)


def test_an_encoder_without_layers():
    params = cropped(random_like(lambda key: bert.init_encoder(EncoderConfig(vocab_size=21, hidden=8, layers=0, heads=2), key)))
    equal(names.encoder_from_hf(names.encoder_to_hf(params, 21), 0, 128), params)


def test_missing_tensors_are_named():
    tensors = names.encoder_to_hf(random_like(lambda key: bert.init_encoder(CONFIG, key)), 21)
    del tensors["encoder.layer.1.output.dense.bias"]
    with pytest.raises(InputError, match=r"missing tensors: encoder\.layer\.1\.output\.dense\.bias$"):
        names.encoder_from_hf(tensors, 2, 128)


@pytest.mark.parametrize("case", ["condenser", "condenser_late_mlm"])
@pytest.mark.parametrize(("file", "prefix"), [("weights", ""), ("expected", "grad/")])
def test_reference_weights_and_gradients_round_trip(case, file, prefix):
    """All tensors of the published Condenser: backbone, shared head, Condenser head; the copies of tied tensors apart."""
    path = REFERENCE / case / f"{file}.safetensors"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    tensors = {name.removeprefix(prefix): tensor for name, tensor in load_file(path).items() if name.startswith(prefix)}
    encoder = names.encoder_from_hf(tensors, 4, 128, "lm.bert.")
    head = names.mlm_head_from_hf(tensors, 128, tied=True, prefix="lm.cls.predictions.")
    stack = names.layers_from_hf(tensors, 2, "c_head.")
    back = (
        names.encoder_to_hf(encoder, 48, "lm.bert.")
        | names.mlm_head_to_hf(head, 48, "lm.cls.predictions.")
        | names.layers_to_hf(stack, "c_head.")
    )
    copies = {"lm.cls.predictions.decoder.weight", "lm.cls.predictions.decoder.bias"}
    known = {name for name in tensors if name.startswith(("lm.", "c_head."))} - copies
    assert set(back) == known and len(known) == 5 + 4 * 16 + 5 + 2 * 16
    for name in known:
        np.testing.assert_array_equal(back[name], tensors[name])
