"""A cross-encoder as a user gets it: trained, killed, loaded; a run reranked, more of it later; a training set taught."""

import dataclasses
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from launching import launch, metrics
from test_finetune import ENCODER, negatives, settings  # noqa: F401  # the fixture

from denseir_jax.core.artifacts import finished_run, read_json
from denseir_jax.core.command import execute, run_command
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.core.events import read
from denseir_jax.data.records import Passage
from denseir_jax.data.teacher_scores import TEACHER_SCORES
from denseir_jax.data.tokens import TokenStore
from denseir_jax.data.trec import read_run, write_run
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.objectives.base import Context
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig
from denseir_jax.pipeline.stages.finetune import stage as finetune
from denseir_jax.pipeline.stages.rerank import RerankConfig, reranked
from denseir_jax.pipeline.stages.rerank import stage as rerank
from denseir_jax.pipeline.stages.teach import TeachConfig
from denseir_jax.pipeline.stages.teach import stage as teach
from denseir_jax.search.pair_scores import score_pairs
from denseir_jax.search.reranker import FOLDER, load_reranker
from denseir_jax.train import warm_start
from denseir_jax.train.loop import Cadence
from denseir_jax.train.state import named, nested

pytestmark = pytest.mark.usefixtures("module_on_one_device")
BODY = dataclasses.replace(ENCODER, max_length=64)


@pytest.fixture(scope="module")
def trained(beir, beir_tokens, negatives, module_on_one_device, tmp_path_factory) -> Path:  # noqa: F811
    """Two epochs of `beir`, with a probe."""
    folder = tmp_path_factory.mktemp("cross") / "run"
    cadence = Cadence(log=15, save=0, keep=1, probe=15)
    config = settings(beir, beir_tokens, negatives, objective=CrossEncoderConfig(group_size=4), encoder=BODY, steps=30, cadence=cadence)
    execute(finetune, dataclasses.replace(config, probe_size=20), folder)
    return folder


def texts(beir: Path, name: str) -> dict[str, str]:
    return {row["_id"]: row["text"] for row in map(json.loads, (beir / f"{name}.jsonl").read_text().splitlines())}


def test_what_a_training_leaves_behind(trained, beir, beir_tokens, negatives):  # noqa: F811
    """A cross-encoder whose scores are those of the objective that trained it, on the rows that it was trained on."""
    manifest, found = finished_run(trained), load_reranker(f"run:{trained}")
    assert set(manifest["outputs"]) == {"params.safetensors", FOLDER} and not (trained / "encoder").exists()
    assert found.sha256 == read_json(trained / "metrics.json")["reranker_sha256"] and found.pair_length == 24 + 32 - 1
    probes = [line for line in read(trained / "events.jsonl") if line["kind"] == "probe"]
    assert [line["step"] for line in probes] == [15, 30] and all(0 < line["accuracy"] <= line["RR@10"] <= 1 for line in probes)
    store, tokens = TokenStore.open(beir_tokens), found.tokenizer
    ids = {"cls_id": tokens.cls_id, "sep_id": tokens.sep_id, "pad_id": tokens.pad_id, "mask_id": tokens.mask_id}
    sizes = {"vocab_size": 300, "query_length": 24, "passage_length": 32, "seed": 0}
    context = Context(found.model.encoder, EmbedderConfig(), **ids, **sizes)
    objective: Any = CrossEncoderConfig(group_size=4).build(context)
    source = objective.rows(store, negatives)
    rows, names = source.rows(np.arange(6)), source.names(np.arange(6))
    want = jax.jit(lambda params, rows: objective.per_row(params, rows, None, False))(found.params, rows)[0]["score"]
    queries, passages = texts(beir, "queries"), texts(beir, "corpus")
    pairs = [
        (queries[name], Passage("", passages[store.ids[int(np.flatnonzero(store.content_ids == row)[0])]]))
        for name, group in zip(names, rows["passage_row"], strict=True)
        for row in group
    ]
    np.testing.assert_allclose(found.score(pairs).reshape(6, 4), want, atol=1e-5)


def test_learns_to_tell_the_positive(beir, beir_tokens, negatives, tmp_path):  # noqa: F811
    """32 queries by heart, against random passages that change from epoch to epoch: chance is right once in four."""
    examples = (negatives / "training_set.jsonl").read_text().splitlines()[:32]
    (tmp_path / "few.jsonl").write_text("\n".join(examples) + "\n")
    objective = CrossEncoderConfig(group_size=4, loss="pointwise", outputs=2)
    config = settings(beir, beir_tokens, negatives, objective=objective, encoder=BODY, steps=120, batch_size=32)
    from denseir_jax.pipeline.stages import finetune as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_training_set", lambda run, config: tmp_path / "few.jsonl")
        found = execute(finetune, config, tmp_path / "run")
    assert found["accuracy"] > 0.7, found


def test_starts_from_what_there_is(trained, beir, beir_tokens, negatives, tmp_path, capsys):  # noqa: F811
    """A cross-encoder gives body and classifier, from its run or its folder; to a retriever its body alone."""
    config = settings(beir, beir_tokens, negatives, objective=CrossEncoderConfig(group_size=2), encoder=BODY, steps=1)
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=1e-9), init_from=f"run:{trained}")
    execute(finetune, config, tmp_path / "again")
    assert "takes classifier, encoder" in capsys.readouterr().err
    first, again = load_reranker(f"run:{trained}"), load_reranker(f"run:{tmp_path / 'again'}")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), again.params, first.params)
    start = warm_start.load(f"hf:{trained / FOLDER}")
    tokens = first.tokenizer
    ids = {"cls_id": tokens.cls_id, "sep_id": tokens.sep_id, "pad_id": tokens.pad_id, "mask_id": tokens.mask_id}
    context = Context(start.encoder, EmbedderConfig(), **ids, vocab_size=300, query_length=24, passage_length=32, seed=0)
    for objective, words in (
        (CrossEncoderConfig(), "takes classifier, encoder"),
        (CrossEncoderConfig(outputs=2), "fresh, since theirs has another shape: classifier"),
        (ContrastiveConfig(), "left out: classifier"),
    ):
        shapes = named(jax.eval_shape(objective.build(context).init, jax.random.key(0)))
        leaves = start.for_model({name: leaf.shape for name, leaf in shapes.items()})
        assert words in capsys.readouterr().err
        body = nested(leaves)["encoder"]
        jax.tree.map(np.testing.assert_array_equal, body, dict(first.params["encoder"]))


def test_a_killed_training_ends_in_the_same_parameters(beir, beir_tokens, negatives, tmp_path):  # noqa: F811
    """By launch/rerank.py with the card at smoke; 240 queries: the epoch ends within a batch."""
    keys = {"dataset": f"beir:{beir}", "tokens": beir_tokens, "training_set": negatives, "steps": 20, "batch_size": 14}
    keys |= {"encoder.layers": 1, "encoder.hidden": 16, "cadence.save": 8, "objective.group_size": 3, "encoder.scan": False}
    words = ["rerank", "--config", "configs/finetune/cross_encoder.py:smoke", *(f"--config.{key}={value}" for key, value in keys.items())]
    want = metrics(launch(*words, "--workdir", str(tmp_path / "whole")))
    launch(*words, "--workdir", str(tmp_path / "run"), code=-signal.SIGKILL, DENSEIR_FAILPOINT="before_save:2")
    found = metrics(launch(*words, "--workdir", str(tmp_path / "run")))
    assert found["params_sha256"] == want["params_sha256"] and found["reranker_sha256"] == want["reranker_sha256"]


@pytest.fixture
def run_file(beir, tmp_path) -> Path:
    """Ten passages for each of 20 dev queries, by a random score."""
    rng = np.random.default_rng(0)
    drawn = {f"q{n}": zip(rng.permutation(60)[:10], rng.normal(size=10).tolist(), strict=True) for n in range(240, 260)}
    ranking = {query: [(f"p{item}", score) for item, score in line] for query, line in drawn.items()}
    write_run(tmp_path / "first.trec", ranking)
    return tmp_path / "first.trec"


def by_hand(first: Path, scores: dict[tuple[str, str], float], depth: int) -> dict[str, list[str]]:
    return {
        query: [
            *sorted((item for item, _ in line[:depth]), key=lambda item: (np.float32(scores[query, item]), item), reverse=True),
            *(item for item, _ in line[depth:]),
        ]
        for query, line in read_run(str(first)).ranking.items()
    }


def test_a_run_is_reranked_and_deeper_later(trained, beir, run_file, tmp_path, capsys):
    config = RerankConfig(dataset=f"beir:{beir}", split="dev", run=str(run_file), reranker=f"run:{trained}", depth=4)
    folder, model = tmp_path / "reranked", load_reranker(f"run:{trained}")
    queries, passages = texts(beir, "queries"), texts(beir, "corpus")
    pairs = [(query, item) for query, line in read_run(str(run_file)).ranking.items() for item, _ in line]
    scores = dict(zip(pairs, model.score([(queries[q], Passage(p, passages[p])) for q, p in pairs]).tolist(), strict=True))
    for depth, new in ((4, 80), (7, 60), (7, None), (20, 60)):
        found = execute(rerank, dataclasses.replace(config, depth=depth), folder)
        assert found["scored"] == new or (new is None and "already finished" in capsys.readouterr().err)
        ranked = read_run(str(folder / "run.trec")).ranking
        assert {query: [item for item, _ in line] for query, line in ranked.items()} == by_hand(run_file, scores, depth)
    kept = dict(line for path in (folder / "scores").glob("0*.jsonl") for line in rows_of(path))
    assert kept.keys() == scores.keys()
    np.testing.assert_allclose([kept[pair] for pair in pairs], [scores[pair] for pair in pairs], atol=1e-5)
    fewer = read_run(str(run_file)).ranking
    write_run(tmp_path / "other.trec", {query: line[::-1][:3] for query, line in fewer.items()})
    again = execute(rerank, dataclasses.replace(config, run=str(tmp_path / "other.trec")), folder)
    assert again["scored"] == 0 and again["pairs"] == 60
    assert execute(rerank, dataclasses.replace(config, run=str(folder)), tmp_path / "twice")["pairs"] == 60  # a run folder will do


def rows_of(path: Path) -> list[tuple[tuple[str, str], float]]:
    return [((row["query_id"], row["passage_id"]), row["score"]) for row in map(json.loads, path.read_text().splitlines())]


def test_what_does_not_belong_together_is_one_line(trained, beir, run_file, tmp_path):
    config = RerankConfig(dataset=f"beir:{beir}", split="dev", run=str(run_file), reranker=f"run:{trained}", depth=2)
    execute(rerank, config, tmp_path / "run")
    with pytest.raises(InputError, match=r"from other inputs \(reranker changed since\)"):
        execute(rerank, dataclasses.replace(config, reranker=f"hf:{trained / FOLDER}"), tmp_path / "run")
    write_run(tmp_path / "lost.trec", {"q240": [("nowhere", 1.0)]})
    for changes, words in (
        ({"split": "train"}, "the query 'q240' has no text"),
        ({"run": str(tmp_path / "lost.trec")}, "the passage 'nowhere' of the query 'q240' is not in the corpus"),
        ({"run": str(tmp_path / "absent")}, "absent does not exist"),
        ({"reranker": f"run:{beir}"}, "holds no manifest"),
        ({"pair_length": 30}, "was trained with"),
    ):
        with pytest.raises(InputError, match=words):
            execute(rerank, dataclasses.replace(config, **changes), tmp_path / "other")
    with pytest.raises(ConfigError, match=r"config\.reranker is empty"):
        execute(rerank, dataclasses.replace(config, reranker=""), tmp_path / "other")


def test_below_the_depth_the_order_stays() -> None:
    ranking = {"q": [("a", 9.0), ("b", 8.0), ("c", 7.0), ("d", 7.0), ("e", -1e9)]}
    found = reranked(ranking, {("q", "a"): -3.0, ("q", "b"): -3.0}, 2)
    assert found == {"q": [("b", -3.0), ("a", -3.0), ("c", -4.0), ("d", -5.0), ("e", -6.0)]}  # a tie: by passage id descending


class Counting:
    """A scorer whose scores tell the pair, and which notes what it was asked."""

    sha256 = "a"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, pairs: Sequence[tuple[str, Passage]], meter: Any = None) -> np.ndarray:
        self.asked += [f"{query} {passage.id}" for query, passage in pairs]
        if len(self.asked) > 8:
            raise KeyboardInterrupt
        return np.array([len(query) + 0.1 * int(passage.id) for query, passage in pairs], np.float32)

    def probability(self, scores: np.ndarray) -> np.ndarray:
        return scores


def test_pairs_are_scored_once_whatever_happens(tmp_path: Path) -> None:
    """An end in the middle loses the file under way alone; the second try and a whole one leave the same bytes."""
    pairs = [(f"q{i % 3}", str(i)) for i in range(14)]

    def texts(some: Any) -> list[tuple[str, Passage]]:
        return [(query, Passage(item, "")) for query, item in some]

    first = Counting()
    with pytest.raises(KeyboardInterrupt):
        score_pairs(tmp_path / "a", first, {"x": 1}, pairs, texts, "test", shard=4)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["000000.jsonl", "000001.jsonl", "scorer.json"]
    second = Counting()
    found = score_pairs(tmp_path / "a", second, {"x": 1}, pairs * 2, texts, "test", shard=4)
    assert second.asked == [f"{q} {p}" for q, p in pairs[8:]] and found.new == 6
    assert found.scores == {(q, p): float(np.float32(len(q) + 0.1 * int(p))) for q, p in pairs}
    for start in (0, 8):  # a whole run asks in the same files
        score_pairs(tmp_path / "b", Counting(), {"x": 1}, pairs[: start + 8], texts, "test", shard=4)
    assert [path.read_bytes() for path in sorted((tmp_path / "a").glob("0*"))] == [
        path.read_bytes() for path in sorted((tmp_path / "b").glob("0*"))
    ]
    third = Counting()
    third.sha256 = "b"
    for scorer, facts in ((third, {"x": 1}), (Counting(), {"x": 2})):
        with pytest.raises(InputError, match="scores of two models are never mixed"):
            score_pairs(tmp_path / "a", scorer, facts, pairs, texts, "test")
    (tmp_path / "a" / "000001.jsonl").write_text('{"passage_id": "4", "query_id": "q1", "score": NaN}\n')
    with pytest.raises(InputError, match=r"000001\.jsonl:1: score is not a finite number.* remove it"):
        score_pairs(tmp_path / "a", Counting(), {"x": 1}, pairs, texts, "test")
    for content in ("[1]", '"x"'):
        (tmp_path / "a" / "scorer.json").write_text(content)
        with pytest.raises(InputError, match=r"scorer\.json is not as it was written"):
            score_pairs(tmp_path / "a", Counting(), {"x": 1}, pairs, texts, "test")


def test_a_killed_reranking_goes_on(trained, beir, run_file, tmp_path, capsys):
    keys = {"dataset": f"beir:{beir}", "split": "dev", "run": run_file, "reranker": f"run:{trained}", "depth": 6}
    words = ["rerank", "--config", "configs/rerank.py:smoke", *(f"--config.{key}={value}" for key, value in keys.items())]
    launch(*words, "--workdir", str(tmp_path / "run"), code=-signal.SIGKILL, DENSEIR_FAILPOINT="pairs:1")
    assert not (tmp_path / "run" / "run.trec").exists()
    assert run_command(rerank, [*words, "--workdir", str(tmp_path / "run")], finetune) == 0
    done = read_json(tmp_path / "run" / "metrics.json")
    assert done["scored"] == 0 and done["pairs"] == 120 and "120 pairs are scored already" in capsys.readouterr().err
    assert len(read_run(str(tmp_path / "run" / "run.trec")).ranking) == 20


def test_a_cross_encoder_teaches(trained, beir, negatives, tmp_path):  # noqa: F811
    config = TeachConfig(dataset=f"beir:{beir}", training_set=str(negatives), teacher=f"hf:{trained / FOLDER}")
    found = execute(teach, config, tmp_path / "taught")
    lines = (tmp_path / "taught" / TEACHER_SCORES).read_text().splitlines()
    some, model = [json.loads(line) for line in lines][::53], load_reranker(f"run:{trained}")
    assert found["scores"] == found["scored"] == len(lines) and finished_run(tmp_path / "taught")["teacher_sha256"] == model.sha256
    queries, passages = texts(beir, "queries"), texts(beir, "corpus")
    want = model.score([(queries[row["query_id"]], Passage("", passages[row["passage_id"]])) for row in some])
    np.testing.assert_allclose([row["score"] for row in some], want, atol=1e-5)
    (tmp_path / "taught" / "manifest.json").unlink()  # as a kill just before the end leaves it
    assert execute(teach, config, tmp_path / "taught")["scored"] == 0
    assert (tmp_path / "taught" / TEACHER_SCORES).read_text().splitlines() == lines
    with pytest.raises(ConfigError, match="which has none"):
        execute(teach, dataclasses.replace(config, embeddings=str(negatives)), tmp_path / "vectors")
