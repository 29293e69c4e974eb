"""Cross-encoders: the logits of transformers for whole pairs and cut ones, folders that come back, what is refused."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file
from scipy.special import softmax
from tiny_retriever import WORDS, passages, tokenizer

from denseir_jax.core.artifacts import Run
from denseir_jax.core.errors import InputError
from denseir_jax.data.records import Passage
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import load_tokenizer
from denseir_jax.search.reranker import FOLDER, PairScorer, Reranker, is_reranker, load_reranker, save_reranker
from denseir_jax.search.retriever import load_retriever

KINDS = ("Bert 1", "Bert 2", "Roberta 1", "Electra 2")
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 72,
}
TEMPLATE = TextTemplate(query_length=20, passage_length=50)
PAIRS = [(" ".join(WORDS[i : i + 1 + i % 5]), passage) for i, passage in enumerate(passages(30))]


def bpe(folder: Path) -> None:
    """RoBERTa's kind of tokenizer."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator([" ".join(WORDS)] * 3, 340, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False)
    trained.save_model(str(folder))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory):
    """The model of a kind in transformers, random in every parameter, and its folder."""
    made = {}

    def folder(kind: str):
        if kind not in made:
            torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
            path, (name, labels) = tmp_path_factory.mktemp("published") / "model", kind.split()
            path.mkdir()
            bpe(path) if name == "Roberta" else tokenizer().save(path)
            sizes = SIZES | {"vocab_size": load_tokenizer(path).vocab_size, "num_labels": int(labels)}
            more = {"Bert": {}, "Roberta": {"type_vocab_size": 1, "pad_token_id": 1}, "Electra": {"embedding_size": 6}}[name]
            config = getattr(transformers, f"{name}Config")(**sizes, **more)
            torch.manual_seed(0)
            model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(0, 0.4)
            model.save_pretrained(path)
            made[kind] = model, path
        return made[kind]

    return folder


def theirs(model, tokens, pairs, longest: int) -> np.ndarray:
    """Logits of transformers, with its own truncation "only_second"."""
    import torch

    fields = {"input_ids": tokens.pad_id, "token_type_ids": 0, "attention_mask": 0}
    inner = tokens._inner
    inner.enable_truncation(longest, strategy="only_second")
    encoded = inner.encode_batch([(query, passage.text) for query, passage in pairs])
    inner.no_truncation()
    rows = [dict(zip(fields, (e.ids, e.type_ids, e.attention_mask), strict=True)) for e in encoded]
    width = max(len(row["input_ids"]) for row in rows)
    batch = {name: torch.tensor([row[name] + [pad] * (width - len(row[name])) for row in rows]) for name, pad in fields.items()}
    with torch.no_grad():
        return model(**batch).logits.numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_transformers(published, kind: str) -> None:
    model, folder = published(kind)
    assert is_reranker(f"hf:{folder}")
    for longest in (72 if "Roberta" not in kind else 70, 30):
        found = load_reranker(f"hf:{folder}", TEMPLATE, longest)
        assert isinstance(found, PairScorer) and found.pair_length == min(longest, found.model.room(20, 50))
        cut = [(query, Passage(p.id, " ".join(p.text.split()[:12]))) for query, p in PAIRS]
        logits = theirs(model, load_tokenizer(folder), cut, longest)
        expected = logits[:, 0] if kind.endswith("1") else logits[:, 1] - logits[:, 0]
        scores = found.score(cut)
        np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=1e-5)
        likely = softmax(np.stack([np.zeros(len(cut)), expected], 1), axis=1) if kind.endswith("1") else softmax(logits, axis=1)
        np.testing.assert_allclose(found.probability(scores), likely[:, 1], atol=1e-5)
    assert len(set(np.round(scores, 4))) > 20


def run_of(reranker: Reranker, folder: Path) -> Path:
    run = Run(folder, "finetune", reranker.template).open({})
    save_reranker(folder, reranker.model, reranker.params, reranker.tokenizer, reranker.template, reranker.pair_length)
    run.finish({}, outputs=[FOLDER])
    return folder


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_folder_comes_back_and_loads_elsewhere(published, kind: str, tmp_path: Path) -> None:
    first = load_reranker(f"hf:{published(kind)[1]}", TextTemplate("q ", "p ", query_length=12, passage_length=30), 38)
    folder = run_of(first, tmp_path / "run")
    again, other = load_reranker(f"run:{folder}"), load_reranker(f"hf:{folder / FOLDER}")
    assert again.facts == first.facts == other.facts and again.model == first.model
    jax.tree.map(np.testing.assert_array_equal, again.params, first.params)
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / FOLDER)
    original = published(kind)[0].state_dict()
    assert model.state_dict().keys() == original.keys() and type(model) is type(published(kind)[0])
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), original[name].numpy(), err_msg=name)
    assert model.config.num_labels == first.model.outputs
    tokens = transformers.AutoTokenizer.from_pretrained(folder / FOLDER)
    assert tokens.model_max_length == 38
    query, passage = max(PAIRS, key=lambda pair: len(pair[1].text))
    ids = tokens(query, passage.text, truncation="only_second")["input_ids"]
    assert len(ids) == 38 and ids.count(tokens.sep_token_id) == (3 if kind.startswith("Roberta") else 2)


def test_a_score_depends_on_its_pair_alone(published) -> None:
    """Not on the company, the order, or the padding."""
    found = load_reranker(f"hf:{published('Bert 1')[1]}", TEMPLATE)
    scores = found.score(PAIRS)
    np.testing.assert_allclose(found.score(PAIRS[::-1])[::-1], scores, atol=1e-5)
    np.testing.assert_allclose(found.score(PAIRS[7:8]), scores[7:8], atol=1e-5)
    assert found.score([]).shape == (0,)
    longer = [(query, Passage("x", passage.text + " " + " ".join(WORDS) * 3)) for query, passage in PAIRS]
    longest = dataclasses.replace(found, pair_length=40)
    capped = [(query, Passage("x", passage.text + " ".join(WORDS[::-1]))) for query, passage in longer]
    np.testing.assert_array_equal(longest.score(longer), longest.score(capped))  # what does not fit is not read


def spoil(folder: Path, **tensors: np.ndarray | None) -> None:
    path = folder / "model.safetensors"
    changed = load_file(path) | tensors
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path, metadata={"format": "pt"})


def test_what_is_no_reranker_is_refused(published, run_folder: Path, tmp_path: Path) -> None:
    first = load_reranker(f"hf:{published('Bert 1')[1]}", TEMPLATE)
    folder = run_of(first, tmp_path / "run")
    with pytest.raises(InputError, match="holds no cross_encoder/denseir"):
        load_reranker(f"run:{run_folder}")
    with pytest.raises(InputError, match="no retriever in it"):
        load_retriever(f"run:{folder}")
    with pytest.raises(InputError, match="expected one with a classifier"):
        load_reranker(f"hf:{run_folder / 'encoder'}")
    assert is_reranker(f"run:{folder}") and not is_reranker(f"run:{run_folder}") and not is_reranker(f"hf:{run_folder / 'encoder'}")
    with pytest.raises(InputError, match="another one was asked for"):
        load_reranker(f"run:{folder}", TextTemplate())
    for length in (21, 73):
        with pytest.raises(InputError, match=rf"pairs of {length} tokens; expected 22, .* to 72"):
            load_reranker(f"hf:{published('Bert 1')[1]}", TEMPLATE, length)
    cases = {
        "changed or mixed": {"classifier.bias": np.ones(1, np.float32)},
        r"missing tensors: bert\.pooler\.dense\.bias": {"bert.pooler.dense.bias": None},
        r"classifier\.weight has the shape \[3, 8\]; expected \[1, 8\]": {"classifier.weight": np.zeros((3, 8), np.float32)},
        "not finite": {"classifier.bias": np.full(1, np.nan, np.float32)},
    }
    for number, (words, tensors) in enumerate(cases.items()):
        other = tmp_path / str(number)
        shutil.copytree(folder / FOLDER, other)
        spoil(other, **tensors)
        if words == "not finite":
            (other / "denseir.json").unlink()
        with pytest.raises(InputError, match=words):
            load_reranker(f"hf:{other}", first.template, first.pair_length).score(PAIRS[:1])


def test_three_labels_are_no_score(published, tmp_path: Path) -> None:
    shutil.copytree(published("Bert 1")[1], tmp_path / "nli")
    config = json.loads((tmp_path / "nli" / "config.json").read_text())
    config["id2label"] = {"0": "contradiction", "1": "entailment", "2": "neutral"}
    (tmp_path / "nli" / "config.json").write_text(json.dumps(config))
    spoil(tmp_path / "nli", **{"classifier.weight": np.zeros((3, 8), np.float32), "classifier.bias": np.zeros(3, np.float32)})
    with pytest.raises(InputError, match="3 outputs; expected 1"):
        load_reranker(f"hf:{tmp_path / 'nli'}")
    assert load_retriever(f"hf:{tmp_path / 'nli'}", TEMPLATE).query.params.keys() == {"encoder"}  # its body is an encoder like others


def test_a_folder_of_sentence_transformers_is_read(published, tmp_path: Path) -> None:
    """Which says of a cross-encoder that it is one module."""
    shutil.copytree(published("Bert 1")[1], tmp_path / "saved")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
    (tmp_path / "saved" / "modules.json").write_text(json.dumps(modules))
    assert load_reranker(f"hf:{tmp_path / 'saved'}", TEMPLATE).facts == load_reranker(f"hf:{published('Bert 1')[1]}", TEMPLATE).facts
