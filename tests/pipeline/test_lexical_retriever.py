"""DupMAE's representation as a user gets it: pre-train, fine-tune, encode, mine and evaluate with words beside the vector."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from denseir_jax.core.command import Stage, run_command
from denseir_jax.data.lines import BadRows
from denseir_jax.data.sources import read_dataset
from denseir_jax.data.trec import read_run
from denseir_jax.pipeline.stages import encode, evaluate, finetune, mine, pretrain, systems
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig
from denseir_jax.search.retriever import Tower, load_retriever

ROOT = Path(__file__).resolve().parents[2]


def command(stage: Stage, card: str, workdir: Path, **keys: object) -> int:
    """The exit code of ``python launch/<stage>.py --config configs/<card> --workdir ...``."""
    words = [f"--config={ROOT / 'configs' / card}", f"--workdir={workdir}", *(f"--config.{key}={value}" for key, value in keys.items())]
    return run_command(stage, [str(ROOT / "launch" / f"{stage.name}.py"), *words])


SMALL = {"steps": 2, "batch_size": 8, "encoder.layers": 1, "cadence.save": 0}


@pytest.fixture(scope="module")
def runs(beir: Path, beir_tokens: Path, module_on_one_device: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``dupmae``, a pre-training run, and ``tuned``, which starts from it and keeps 8 words of a text."""
    folder = tmp_path_factory.mktemp("runs")
    assert command(pretrain.stage, "pretrain/dupmae.py:smoke", folder / "dupmae", tokens=beir_tokens, **SMALL) == 0
    tuned = {**SMALL, "dataset": f"beir:{beir}", "tokens": beir_tokens, "init_from": f"run:{folder / 'dupmae'}"}
    more = {"embedder.lexical": 8, "embedder.normalize": False, "objective.group_size": 2, "cadence.probe": 2, "probe_size": 8}
    assert command(finetune.stage, "finetune/contrastive.py:smoke", folder / "tuned", **tuned, **more) == 0
    return folder


def score(runs: Path, query: str, passage: str) -> float:
    """The dot product of two whole vectors."""
    found = load_retriever(f"run:{runs / 'tuned'}")

    def vector(tower: Tower, text: str) -> np.ndarray:
        words = found.tokenizer
        ids = [words.cls_id, *words.encode_batch([text])[0].ids[:30], words.sep_id]
        padded = jnp.asarray([ids + [words.pad_id] * (32 - len(ids))], jnp.int32)
        return np.asarray(tower.embedder.embed(tower.params, padded, jnp.asarray([len(ids)])))[0]

    return float(vector(found.query, query) @ vector(found.passage, passage))


def texts(beir: Path, name: str) -> dict[str, str]:
    rows = [json.loads(line) for line in (beir / f"{name}.jsonl").read_text().splitlines()]
    return {row["_id"]: row["text"] for row in rows}


def test_fine_tuning_takes_the_head_over_and_trains_it(runs: Path) -> None:
    before, after = (load_file(runs / name / "params.safetensors") for name in ("dupmae", "tuned"))
    heads = [name for name in before if name.startswith("mlm_head/")]
    assert heads and sorted({name.split("/")[0] for name in after}) == ["encoder", "mlm_head"]
    for name in heads:  # two steps from where pre-training ended, not from fresh weights
        moved, apart = np.abs(after[name] - before[name]).max(), np.abs(after[name]).max()
        assert 0 < moved < 0.01, name
        assert name.endswith("bias") or apart > 5 * moved, name
    probe = [json.loads(line) for line in (runs / "tuned" / "events.jsonl").read_text().splitlines()]
    assert any(line["kind"] == "probe" and "RR@10" in line for line in probe)


def test_encode_mine_and_evaluate_score_dense_and_lexical_together(beir: Path, runs: Path, tmp_path: Path) -> None:
    common = {"dataset": f"beir:{beir}", "retriever": f"run:{runs / 'tuned'}", "embeddings": tmp_path / "vectors"}
    told = {"retriever": common["retriever"], "corpus": f"beir:{beir}", "dtype": "float32"}
    assert command(encode.stage, "encode.py:smoke", tmp_path / "vectors", **told) == 0
    assert np.load(tmp_path / "vectors" / encode.VECTORS / "00000.words.npy").shape == (60, 8)
    margin = {"index": "exact", "absolute_margin": 0.0, "hi": 10, "depth": 20}
    assert command(mine.stage, "mine.py:smoke", tmp_path / "mined", **common, **margin) == 0
    queries, passages = texts(beir, "queries"), texts(beir, "corpus")
    rows = [json.loads(line) for line in (tmp_path / "mined" / mine.MINED).read_text().splitlines()]
    row = next(row for row in rows if row["negatives"])
    worst = row["negatives"][-1]
    assert worst["score"] == pytest.approx(score(runs, queries[row["query_id"]], passages[worst["id"]]), rel=1e-4)
    own = score(runs, queries[row["query_id"]], passages[f"p{int(row['query_id'][1:]) % 60}"])
    assert all(item["score"] <= own + 1e-4 for item in row["negatives"]), "the margin of the positive is the full score's"
    assert command(evaluate.stage, "evaluate/run.py:smoke", tmp_path / "evaluated", **common) == 0
    ranking = read_run(str(tmp_path / "evaluated" / "run.trec")).ranking
    query, line = next(iter(ranking.items()))
    assert len(line) == 60
    for passage, value in (line[0], line[-1]):
        assert value == pytest.approx(score(runs, queries[query], passages[passage]), rel=1e-4)
    config = EvaluateConfig(**{name: str(value) for name, value in common.items()})
    dense = systems.Dense(config, read_dataset(config.dataset, BadRows()), tmp_path)
    asked = {query: queries[query]}  # what a hybrid asks for passages that only BM25 found
    true = dense.scorer(asked, dense.encode(asked))(query, [passage for passage, _ in line])
    np.testing.assert_allclose(true, [value for _, value in line], rtol=1e-4)


@pytest.mark.parametrize(
    ("stage", "card", "keys", "message"),
    [
        (mine.stage, "mine.py:smoke", {}, "use index=exact"),
        (evaluate.stage, "evaluate/run.py", {"index": "scann"}, "use index=exact"),
        (finetune.stage, "finetune/contrastive.py:smoke", {"embedder.normalize": True}, "lexical=8 goes with normalize=false"),
        (finetune.stage, "finetune/contrastive.py:smoke", {"objective.similarity": "cosine"}, "goes with objective.similarity=dot"),
    ],
)
def test_what_does_not_go_with_words_is_one_line(beir, beir_tokens, runs, tmp_path, capsys, stage, card, keys, message) -> None:
    told = {"dataset": f"beir:{beir}", **keys}
    told |= {"tokens": beir_tokens, "embedder.lexical": 8} if stage is finetune.stage else {"retriever": f"run:{runs / 'tuned'}"}
    assert command(stage, card, tmp_path / "run", **told) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert not (tmp_path / "run" / encode.VECTORS).exists()
