"""The parts of ANCE without processes: sets, log, heartbeats, which rows a step reads, what is mined.

What the authors' code gets wrong is shown right here or in test_ance.py: a query's other positives are no negatives, and n are
given where there are n (`test_a_round_...`); nothing is read half-written; position and optimizer survive a restart; a dead
inferencer is noticed. The triples of a query do not follow one another: an epoch asks every query once (`data.order`). There is
no number 0 that would mean padding: ids are texts.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.core import artifacts, failpoints, signals
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import execute
from denseir_jax.core.config import identity, parse
from denseir_jax.core.errors import ConfigError, InputError, Stopped
from denseir_jax.data.examples import TRAINING_SET, Example, read_examples, write_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.pipeline.ance import partner
from denseir_jax.pipeline.ance import sets as set_files
from denseir_jax.pipeline.ance.config import AnceConfig, RefreshConfig
from denseir_jax.pipeline.ance.folder import need_whole
from denseir_jax.pipeline.ance.heartbeat import Heart, Listener
from denseir_jax.pipeline.ance.partner import Partner, shares
from denseir_jax.pipeline.ance.refresh import Refresher
from denseir_jax.pipeline.ance.rows import RefreshedRows
from denseir_jax.pipeline.ance.sets import FACTS, SetFacts, SetLog, Sets, Taken
from denseir_jax.pipeline.mining import scoring
from denseir_jax.pipeline.stages import ance
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.prepare import stage as prepare
from denseir_jax.search.denoise import DenoiseConfig
from denseir_jax.search.encode import encode_queries, for_tower
from denseir_jax.search.retriever import assembled
from denseir_jax.search.scann_index import ScannConfig
from denseir_jax.train import state as states
from denseir_jax.train.checkpoint import Checkpoints
from denseir_jax.train.loop import Cadence

ENCODER = EncoderConfig(100, hidden=8, layers=1, heads=2, intermediate=8, max_length=16)
TRIPLES = ContrastiveConfig(group_size=2, loss="pairwise", in_batch=False)


def config(**more) -> AnceConfig:
    return AnceConfig(**{"encoder": ENCODER, "objective": TRIPLES, "batch_size": 4, **more})


def publish(folder: Path, number: int, checkpoint_step: int) -> None:
    with Sets(folder / "sets").publish(number) as made:
        (made / TRAINING_SET).write_text(f"{number}\n")
        facts = SetFacts(number, checkpoint_step, "", artifacts.file_sha256(made / TRAINING_SET), 1, 1, {}, {})
        artifacts.write_json(made / FACTS, dataclasses.asdict(facts))


class Numbered:
    """Rows that say which set they are of."""

    def __init__(self, path: Path):
        self.number, self.n_items, self.counts = int(path.read_text()), 10, {"set": int(path.read_text())}

    def rows(self, stream: np.ndarray) -> dict[str, np.ndarray]:
        return {"index": stream, "set": np.full(len(stream), self.number)}

    def names(self, stream: np.ndarray) -> list[str]:
        return [str(index) for index in stream]


def settled(folder: Path, ours: AnceConfig, start: int, stop: int, arriving: dict[int, int]) -> list[tuple[int, float]]:
    """(set, pace) of the steps start..stop-1 of a trainer; `arriving`: boundary -> checkpoint of a set published before it."""

    def attend(step: int) -> None:
        if step in arriving:
            newest = Sets(folder / "sets").newest()
            if Sets(folder / "sets").facts(newest).checkpoint_step < arriving[step]:
                publish(folder, newest + 1, arriving[step])

    source = RefreshedRows(folder, ours, Numbered, attend, Heart(folder / "h.json", 1.0, ""))
    counts, found, step = source.counts, [], start
    while step < stop:
        end = min(source.settle(step), stop)
        assert end > step
        for now in range(step, end):
            rows = source.rows(np.arange(4) + 4 * now)
            assert source.counts is counts and counts == {"set": rows["set"][0]}
            found.append((int(rows["set"][0]), round(float(rows["pace"][0]), 4)))
            assert source.facts(now + 1)["set"] == rows["set"][0] and source.facts(now + 1)["pace"] == pytest.approx(rows["pace"][0])
        step = end
    return found


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_whatever_was_killed_what_was_trained_is_what_the_log_says(data):
    """Lives that start from the last checkpoint, sets that arrive at any boundary: a run by the log alone reads the same rows."""
    steps, poll = 24, data.draw(st.integers(1, 5))
    ours = config(poll=poll, rewarm=3)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        folder, other = Path(first), Path(second)
        publish(folder, 0, 0)
        trained: dict[int, tuple[int, float]] = {}
        start, logged = 0, []
        for _ in range(data.draw(st.integers(0, 3))):
            arriving = {step: step for step in data.draw(st.lists(st.integers(1, steps)))}
            stop = data.draw(st.integers(start + 1, steps))
            trained |= dict(enumerate(settled(folder, ours, start, stop, arriving), start))
            assert SetLog(folder / "sets.log").entries[: len(logged)] == logged, "nothing that was logged is taken back"
            logged = SetLog(folder / "sets.log").entries
            start = data.draw(st.integers(start, min(stop, steps - 1)))  # the last checkpoint of this life
        trained |= dict(enumerate(settled(folder, ours, start, steps, {}), start))
        log = SetLog(folder / "sets.log").entries
        assert all(taken.step % poll == 0 for taken in log)
        shutil.copytree(folder / "sets", other / "sets")
        shutil.copy(folder / "sets.log", other / "sets.log")
        assert settled(other, ours, 0, steps, {}) == [trained[step] for step in range(steps)]
        last = RefreshedRows(other, ours, Numbered, lambda step: None, Heart(other / "h.json", 1.0, ""))
        assert last.counts == {"set": log[-1].set}, "no step is left to a life that was killed before the export"
        for step, (number, pace) in trained.items():
            taken = max((taken for taken in log if taken.step <= step), key=lambda taken: taken.step)
            assert number == taken.set and pace == round(min((step - taken.step + 1) / 4, 1) if taken.set else 1, 4)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 400))
def test_a_torn_line_of_the_log_is_no_line(gaps, cut):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sets.log"
        log, entries = SetLog(path), [Taken(i, sum(gaps[:i]), "a" * 8) for i in range(len(gaps))]
        for taken in entries:
            log.append(taken)
        whole = path.read_bytes()
        path.write_bytes(whole[:cut])
        kept = SetLog(path)
        assert kept.entries == entries[: whole[:cut].count(b"\n")]
        for taken in entries[len(kept.entries) :]:
            kept.append(taken)
        assert path.read_bytes() == whole and SetLog(path).entries == entries


def test_a_log_that_is_none_is_refused_by_its_line(tmp_path):
    whole = b'{"set": 0, "step": 0, "sha256": ""}\n'
    for text, message in (
        (b"x\n", "sets.log:1: 'x' is no JSON"),
        (whole + b"{}\n", "sets.log:2 holds no usable 'set'"),
        (whole + b'{"set": 1, "step": 2, "sha256": "", "more": 1}\n', "sets.log:2 holds no usable Taken"),
        (whole + whole.replace(b'""', b'"\xff"'), "sets.log:2: .* is no JSON in UTF-8"),
        (whole.replace(b'"set": 0', b'"set": -1'), "sets.log:1: set -1 at step 0; expected both above"),
    ):
        (tmp_path / "sets.log").write_bytes(text)
        with pytest.raises(InputError, match=message):
            SetLog(tmp_path / "sets.log")
    lines = [json.dumps({"set": number, "step": 5, "sha256": ""}) for number in (1, 2)]
    (tmp_path / "sets.log").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"sets.log:2: set 2 at step 5; expected both above"):
        SetLog(tmp_path / "sets.log")


def test_a_set_is_visible_only_when_whole_and_goes_when_no_checkpoint_needs_it(tmp_path):
    sets = Sets(tmp_path / "sets")
    assert sets.newest() is None
    for number in range(4):
        publish(tmp_path, number, 10 * number)
    with pytest.raises(RuntimeError), sets.publish(4) as folder:
        (folder / TRAINING_SET).write_text("half")
        assert sets.newest() == 3
        raise RuntimeError
    (tmp_path / "sets/.000004.1.tmp").mkdir()  # a killed writer cannot tidy up
    assert sets.newest() == 3
    sets.clean()
    assert sorted(path.name for path in sets.folder.iterdir()) == [f"00000{n}" for n in range(4)]
    for step in (12, 25):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    log = SetLog(tmp_path / "sets.log")
    for number, step in ((0, 0), (1, 11), (2, 21), (3, 31)):
        log.append(Taken(number, step, sets.facts(number).sha256))
    settled(tmp_path, config(rewarm=1), 25, 40, {})
    assert sets.numbers() == [1, 2, 3], "checkpoint 12 needs set 1"
    (tmp_path / "checkpoints/12").rmdir()
    (tmp_path / "checkpoints/25").rename(tmp_path / "checkpoints/500")
    settled(tmp_path, config(rewarm=1), 500, 501, {})
    assert sets.numbers() == [3]
    (sets.path(3) / TRAINING_SET).write_text("another")
    with pytest.raises(InputError, match="was changed after it had been published"):
        settled(tmp_path, config(), 500, 501, {})
    with pytest.raises(InputError, match="is gone, though training needs the set"):
        sets.examples(1, "")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_what_is_no_set_is_not_taken_for_one(tmp_path):
    sets = Sets(tmp_path / "sets")
    publish(tmp_path, 0, 0)
    for name in ("9junk", "12", "0000001"):
        (sets.folder / name).mkdir()
    assert sets.numbers() == [0]
    shutil.copytree(sets.path(0), sets.path(50))
    with pytest.raises(InputError, match=r"000050/set.json is of set 0; expected 50, as its folder is named"):
        sets.facts(50)
    shutil.rmtree(sets.path(50))
    sets.path(1).write_text("")
    with pytest.raises(InputError, match="000001 is a file; expected the folder of a set"):
        sets.newest()


def a_run(folder: Path) -> None:
    """Sets 1 to 3 and the log of 0 to 3, as checkpoint 12, the oldest, needs them."""
    for number, step in enumerate((0, 11, 21, 31)):
        publish(folder, number, 10 * number)
        SetLog(folder / "sets.log").append(Taken(number, step, Sets(folder / "sets").facts(number).sha256))
    for step in (12, 40):
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
    shutil.rmtree(folder / "sets/000000")


def test_a_whole_run_folder_is_taken(tmp_path):
    need_whole(tmp_path)
    a_run(tmp_path)
    need_whole(tmp_path)


@pytest.mark.parametrize("role", ["sliced", "trainer"])
@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: shutil.rmtree(folder / "sets/000003"), "sets/000003 is gone, though training needs the set"),
        (lambda folder: shutil.rmtree(folder / "sets/000001"), "sets/000001 is gone"),
        (lambda folder: shutil.rmtree(folder / "sets"), "sets/000001 is gone"),
        (lambda folder: SetLog(folder / "sets.log").append(Taken(99, 39, "")), "sets/000099 is gone"),
        (lambda folder: (folder / "sets.log").unlink(), "sets.log says of no set, though there are checkpoints"),
        (lambda folder: shutil.copytree(folder / "sets/000003", folder / "sets/000050"), "000050/set.json is of set 3; expected 50"),
        (lambda folder: other(folder, 2), "000002 is not the set that"),
        (lambda folder: (folder / "heartbeats").write_text(""), "heartbeats is a file; expected the folder"),
        (lambda folder: (folder / "inferencer").write_text(""), "inferencer is a file; expected the folder"),
        (lambda folder: (folder / "heartbeats/trainer.json").mkdir(parents=True), "trainer.json is a folder; expected the file"),
        (lambda folder: shutil.rmtree(folder / "sets") or (folder / "sets").write_text(""), "sets is a file; expected the folder"),
    ],
)
def test_a_damaged_run_folder_is_refused_at_once_as_it_is(damage, message, role, tmp_path):
    a_run(tmp_path)
    damage(tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(InputError, match=message):
        ance.run_ance(Run(tmp_path, "ance", config(role=role)))
    assert files_of(tmp_path) == before


def other(folder: Path, number: int) -> None:
    path = folder / f"sets/{number:06d}" / FACTS
    artifacts.write_json(path, {**json.loads(path.read_text()), "sha256": "another"})


def test_an_inferencer_does_not_follow_where_a_set_is_gone(tmp_path):
    a_run(tmp_path)
    ours = config(role="inferencer")
    artifacts.write_json(tmp_path / "config.json", {"identity": identity(ours)})
    shutil.rmtree(tmp_path / "sets/000003")
    before = files_of(tmp_path)
    with pytest.raises(InputError, match="sets/000003 is gone"):
        ance.run_ance(Run(tmp_path / "inferencer", "ance", ours))
    assert files_of(tmp_path) == before


def test_who_waits_for_a_set_that_another_host_sees_says_so(tmp_path, capsys, monkeypatch):
    sets = Sets(tmp_path / "sets")
    monkeypatch.setattr(set_files.time, "sleep", lambda seconds: publish(tmp_path, 1, 5))
    sets.wait_for(1)
    sets.wait_for(1)
    told = capsys.readouterr().err
    assert sets.newest() == 1 and told.count("waits up to") == 1 and "sets/000001, which another process sees already" in told


def test_only_signs_of_life_from_now_on_count(tmp_path):
    path = tmp_path / "h.json"
    with Heart(path, 0.02, "working") as heart:
        listener = Listener(path)
        while not listener.heard:
            pass
        assert listener.state == "working" and listener.silence < 5
        heart.step = 7
    assert listener.state == "finished" and json.loads(path.read_text())["step"] == 7
    assert not Listener(path).heard and Listener(path).state == "", "what lies there from an earlier life says nothing"
    with pytest.raises(KeyError), Heart(path, 5.0, "working"):
        raise KeyError
    assert listener.state == "stopped"
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True).stdout
    artifacts.write_json(path, {**json.loads(path.read_text()), "pid": int(dead)})
    assert listener.silence == float("inf")
    artifacts.write_json(path, {**json.loads(path.read_text()), "host": "elsewhere"})
    assert listener.silence < 5, "of another host's processes nothing is known"
    path.write_text("{")
    assert listener.silence < 5


@pytest.mark.parametrize("policy", ["continue", "stop", "wait"])
def test_what_silence_leads_to(policy, tmp_path, capsys, monkeypatch):
    heart, clock = Heart(tmp_path / "t.json", 1.0, ""), iter(range(1, 100))
    other = Partner(tmp_path, config(role="trainer", on_silence=policy, patience=0.01), heart, {})

    def sleep(seconds: float) -> None:
        assert heart.state == "waiting" and policy == "wait"
        if next(clock) == 3:
            artifacts.write_json(tmp_path / "heartbeats/inferencer.json", {"beat": 1, "pid": os.getpid(), "host": "h", "state": "x"})

    monkeypatch.setattr(signals, "_received", [])
    time.sleep(0.02)
    monkeypatch.setattr(partner.time, "sleep", sleep)
    other.attend(5)
    if policy == "continue":
        other.attend(10)
    told = capsys.readouterr().err
    assert told.count("ance: the inferencer has been silent for 0s; ") == 1 and f"(on_silence={policy})" in told
    assert ("heard again" in told) == (policy == "wait") and signals.received() == (policy == "stop")
    assert heart.state == "training"


def test_gpus_are_shared_or_divided(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert shares(0) == ({}, {})
    with pytest.raises(ConfigError, match="inferencer_devices=1 of 0 GPUs leaves the trainer none"):
        shares(1)
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3")
    assert shares(1) == ({"CUDA_VISIBLE_DEVICES": "0,2"}, {"CUDA_VISIBLE_DEVICES": "3"})
    half = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"}
    assert shares(0) == (half, half)
    with pytest.raises(ConfigError, match="inferencer_devices=3 of 3 GPUs"):
        shares(3)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"objective": DistillConfig()}, "mined negatives carry no teacher's score; expected contrastive"),
        ({"objective": dataclasses.replace(TRIPLES, sources=("bm25",))}, r"expected objective.sources=\(\) and group_size"),
        ({"cadence": Cadence(save=0)}, "the inferencer follows checkpoints"),
        ({"poll": 0}, "poll=0 must be at least 1"),
        ({"mine": {"n": 9, "lo": 2, "hi": 10}}, "mine.n=9 negatives cannot come out of the 8 ranks"),
        ({"mine": {"denoise": {"reranker": "run:x", "more_positives": True}}}, "expected more_positives=False"),
        ({"mine": {"denoise": {"reranker": "run:x", "calibrate_split": "dev"}}}, 'and calibrate_split=""'),
        ({"mine": {"exclude_answers": "all"}}, "'all' is not one of '', 'string', 'regex'"),
        ({"role": "both!"}, "'both!' is not one of 'both', 'trainer', 'inferencer', 'sliced'; did you mean 'both'"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises((ValueError, ConfigError), match=message):
        parse(AnceConfig, {"encoder": ENCODER, "objective": TRIPLES, **changes})


@pytest.fixture(scope="module")
def one_round(beir, beir_tokens, tmp_path_factory, module_on_one_device):
    return before_a_round(beir, beir_tokens, tmp_path_factory)


def before_a_round(beir, tokens, tmp_path_factory):
    """A run folder with set 0, a checkpoint of random parameters at step 3, and what its refresher needs."""
    data = tmp_path_factory.mktemp("data") / "beir"
    shutil.copytree(beir, data)
    with open(data / "qrels/train.tsv", "a") as stream:  # a second positive, of which the training set does not know
        stream.writelines(f"q{n}\tp{(n + 7) % 60}\t1\n" for n in range(240))
    texts = {row["_id"]: row["text"] for row in map(json.loads, (data / "queries.jsonl").read_text().splitlines())}
    encoder = dataclasses.replace(ENCODER, hidden=16, max_length=32)
    ours = config(dataset=f"beir:{data}", tokens=str(tokens), encoder=encoder, embedder=EmbedderConfig(pooling="mean"), steps=9)
    folder = tmp_path_factory.mktemp("run")
    with Sets(folder / "sets").publish(0) as made:
        examples = [Example(f"q{n}", texts[f"q{n}"], (f"p{n % 60}",), {"bm25": (f"p{(n + 1) % 60}",)}) for n in range(240)]
        write_examples(made / TRAINING_SET, examples)
        facts = SetFacts(0, 0, "", artifacts.file_sha256(made / TRAINING_SET), 240, 0, {}, {})
        artifacts.write_json(made / FACTS, dataclasses.asdict(facts))
    refresher = Refresher(folder, ours)
    params = refresher._objective.init(jax.random.key(1))
    files = Checkpoints(folder / "checkpoints", keep_last=2)
    files.save(states.create(params, optax.identity(), 0), 3, {"step": 3})
    files.wait()
    files.close()
    return folder, ours, refresher


def mined(run, **changes) -> tuple[SetFacts, list[Example]]:
    """A round in a copy of the run folder."""
    folder, ours, _ = run
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        refresher = Refresher(Path(copy), settings_of(ours, **changes))
        facts = refresher.refresh()
        found = list(read_examples(Path(copy) / "sets/000001" / TRAINING_SET, BadRows("error")))
        assert refresher.refresh() is None and not refresher.due(), "there is no newer checkpoint"
        return facts, found


def settings_of(ours: AnceConfig, query_parts: int = 1, **mine) -> AnceConfig:
    """Of a round that searches the whole corpus."""
    settings = MineConfig(**{"index": "exact", "depth": 60, "hi": mine.get("depth", 60), **mine})
    return dataclasses.replace(ours, mine=settings, refresh=RefreshConfig(query_parts=query_parts, shard_rows=16))


def true_scores(run, examples: list[Example]) -> dict[str, dict[str, float]]:
    """Query -> passage -> score, by the parameters of the checkpoint."""
    _, _, refresher = run
    towers = refresher._objective.towers(refresher._objective.init(jax.random.key(1)))
    parts = refresher._context.encoder, refresher._context.embedder, refresher._tokenizer, refresher._store.template
    retriever = assembled(towers, *parts, refresher._objective.similarity)
    store = refresher._store
    encode, params = for_tower(retriever.passage, retriever, store.template.passage_length, 0)
    passages = encode.encode(params, [store.document(row)[0] for row in range(60)])
    queries = encode_queries(retriever, {example.query_id: example.query for example in examples})
    lines = (queries @ passages.T).tolist()
    return {example.query_id: dict(zip(store.ids, line, strict=True)) for example, line in zip(examples, lines, strict=True)}


def positives_of(n: int) -> set[str]:
    return {f"p{n % 60}", f"p{(n + 7) % 60}"}


def test_a_round_takes_the_best_that_may_stay_of_the_part_of_the_queries_that_is_due(one_round):
    facts, found = mined(one_round, n=20, take="first", query_parts=3)
    assert (facts.number, facts.checkpoint_step, facts.queries, facts.mined) == (1, 3, 240, 80)
    scores = true_scores(one_round, found)
    for n, example in enumerate(found):
        if n % 3:
            assert example.negatives == {"bm25": (f"p{(n + 1) % 60}",)}, "kept as they were"
            continue
        names, positives, of = list(example.negatives["ance"]), positives_of(n), scores[example.query_id]
        assert example.negatives.keys() == {"ance"} and len(names) == 20 and not positives & set(names)
        best = sorted((score for name, score in of.items() if name not in positives), reverse=True)[:20]
        np.testing.assert_allclose([of[name] for name in names], best, atol=2e-3)  # the vectors were kept as float16


def test_n_at_random_of_the_depth_best_and_another_n_each_round(one_round):
    best = [e.negatives["ance"] for e in mined(one_round, n=30, depth=30, take="first")[1]]
    some = [e.negatives["ance"] for e in mined(one_round, n=8, depth=30)[1]]
    assert all(len(few) == 8 and set(few) <= set(all_) for few, all_ in zip(some, best, strict=True))
    ranks = [all_.index(name) for few, all_ in zip(some, best, strict=True) for name in few]
    assert 12 < np.mean(ranks) < 16, "uniform over 28 or so"
    assert some == [e.negatives["ance"] for e in mined(one_round, n=8, depth=30)[1]], "the same every time"


def test_a_round_keeps_out_what_mine_keeps_out(one_round, beir, tmp_path):
    """Answers of a file, and a margin below the best positive: by the texts and by the true scores."""
    texts = {row["_id"]: row["text"] for row in map(json.loads, (beir / "corpus.jsonl").read_text().splitlines())}
    answers = {f"q{n}": texts[f"p{n % 60}"].split()[n % 6] for n in range(240)}
    queries = {row["_id"]: row["text"] for row in map(json.loads, (beir / "queries.jsonl").read_text().splitlines())}
    (tmp_path / "questions.csv").write_text("".join(f"{queries[name]}\t['{word.upper()}']\n" for name, word in answers.items()))
    told = {"exclude_answers": "string", "questions": str(tmp_path / "questions.csv")}
    facts, found = mined(one_round, n=60, take="first", absolute_margin=0.0, **told)
    assert facts.dropped["holds an answer"] > 240 and facts.dropped["within the margin of the positive"] > 240
    scores, held = true_scores(one_round, found), 0
    for n, example in enumerate(found):
        names, of = set(example.negatives["ance"]), scores[example.query_id]
        may = {name for name, text in texts.items() if answers[example.query_id] not in text.split()} - positives_of(n)
        bar = max(of[name] for name in positives_of(n))
        assert {name for name in may if of[name] < bar - 4e-3} <= names <= {name for name in may if of[name] <= bar + 4e-3}
        held += len(names)
    assert 240 * 5 < held < 240 * 50
    with pytest.raises(InputError, match=r"gives no answers for exclude_answers=string; name a file by config\.questions"):
        mined(one_round, exclude_answers="string")


class Parity:
    """A cross-encoder that finds passages of even numbers relevant; it can die on the way."""

    sha256, facts = "parity", {}

    def __init__(self, lives: int):
        self.lives, self.asked = lives, []

    def score(self, pairs, meter=None):
        self.lives -= 1
        if not self.lives:
            raise KeyboardInterrupt
        self.asked += [(query, passage.id) for query, passage in pairs]
        return np.array([3.0 if int(passage.id[1:]) % 2 == 0 else -3.0 for _, passage in pairs], np.float32)

    def probability(self, scores):
        return (1 / (1 + np.exp(-scores))).astype(np.float32)


def test_a_cross_encoder_judges_every_round_and_no_pair_twice(one_round, tmp_path, monkeypatch):
    folder, ours, _ = one_round
    shutil.copytree(folder, tmp_path / "run")
    ours = settings_of(ours, n=60, take="first", denoise=DenoiseConfig(reranker="run:some"))
    asked = []
    for scorer in (Parity(2), Parity(100)):
        monkeypatch.setattr(scoring, "load_reranker", lambda origin, scorer=scorer, **more: scorer)
        with contextlib.suppress(KeyboardInterrupt):
            Refresher(tmp_path / "run", ours).refresh()
        asked += scorer.asked
    assert len(asked) == len(set(asked)) == 240 * 58, "what was scored before the kill is kept"
    for n, example in enumerate(read_examples(tmp_path / "run/sets/000001" / TRAINING_SET, BadRows("error"))):
        assert set(example.negatives["ance"]) == {f"p{i}" for i in range(1, 60, 2)} - positives_of(n)
        assert example.positives == (f"p{n % 60}",)


def test_a_round_that_was_broken_off_anywhere_ends_in_the_same_set(one_round, tmp_path, monkeypatch):
    """Where processes are not killed in test_ance.py, too."""
    folder, ours, _ = one_round
    ours, sets, reach = settings_of(ours, n=8), [], failpoints.reach

    def broken(place: str):
        def at(name: str) -> None:
            if name == place:
                raise KeyboardInterrupt

        return at

    for place in ("", "encode_shard", "ance_encoded", "ance_mid_publish", "ance_published"):
        run = tmp_path / f"run{place}"
        shutil.copytree(folder, run)
        monkeypatch.setattr(failpoints, "reach", broken(place))
        with pytest.raises(KeyboardInterrupt) if place else contextlib.nullcontext():
            Refresher(run, ours).refresh()
        monkeypatch.setattr(failpoints, "reach", reach)
        assert (Refresher(run, ours).refresh() is None) == (place in ("", "ance_published"))
        files = [run / "sets/000001" / name for name in (TRAINING_SET, "mined.jsonl", "removed.jsonl", FACTS)]
        sets.append([path.read_bytes() for path in files])
        assert not (run / "inferencer/round").exists()
    assert all(found == sets[0] for found in sets)


def test_a_round_whose_parameters_are_lost_begins_anew(one_round, tmp_path, monkeypatch):
    folder, ours, _ = one_round
    ours, run, reach = settings_of(ours, n=8), tmp_path / "run", failpoints.reach
    shutil.copytree(folder, run)

    def killed(name: str) -> None:
        if name == "ance_encoded":
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "reach", killed)
    with pytest.raises(KeyboardInterrupt):
        Refresher(run, ours).refresh()
    monkeypatch.setattr(failpoints, "reach", reach)
    params = run / "inferencer/round/params.safetensors"
    params.write_bytes(params.read_bytes()[:100])
    with pytest.raises(InputError, match=r"params.safetensors cannot be read .*; remove .*/round, and the round begins anew"):
        Refresher(run, ours).refresh()
    params.unlink()
    assert Refresher(run, ours).refresh() == mined(one_round, n=8)[0]


def test_a_round_reads_only_what_was_published_and_gives_no_number_twice(one_round, tmp_path):
    folder, ours, _ = one_round
    shutil.copytree(folder, tmp_path / "run")
    refresher, path = Refresher(tmp_path / "run", settings_of(ours, n=8)), tmp_path / "run/sets/000000" / TRAINING_SET
    whole = path.read_text()
    path.write_text(whole.replace('"p1"', '"p2"', 1))
    with pytest.raises(InputError, match="was changed after it had been published"):
        refresher.refresh()
    path.write_text(whole)
    SetLog(tmp_path / "run/sets.log").append(Taken(1, 2, ""))
    with pytest.raises(InputError, match="sets/000001 is gone"):
        refresher.refresh()
    assert Sets(tmp_path / "run/sets").numbers() == [0]


def test_documents_of_several_blocks_are_mined_once_each(beir, tmp_path_factory, one_device):
    """MaxP: the index holds blocks, a set documents."""
    template = TextTemplate(query_length=24, passage_length=12, blocks=3)
    tokens = tmp_path_factory.mktemp("blocks") / "tokens"
    execute(prepare, PrepareConfig(corpus=f"beir:{beir}", vocab_size=300, train_queries=True, workers=1, template=template), tokens)
    facts, found = mined(before_a_round(beir, tokens, tmp_path_factory), n=40)
    assert facts.mined == 240
    for n, example in enumerate(found):
        names = example.negatives["ance"]
        assert len(set(names)) == len(names) == 40 and not positives_of(n) & set(names)


def test_scann_finds_nearly_the_same(one_round):
    best, near = (
        mined(one_round, n=20, depth=50, take="first", index=index, scann=ScannConfig(min_points=16))[1] for index in ("exact", "scann")
    )
    both = [len(set(a.negatives["ance"]) & set(b.negatives["ance"])) / 20 for a, b in zip(best, near, strict=True)]
    assert np.mean(both) > 0.9
    assert not any(positives_of(n) & set(example.negatives["ance"]) for n, example in enumerate(near))


def test_an_inferencer_does_not_wait_for_ever_for_its_trainer(tmp_path):
    with pytest.raises(Stopped, match="nothing was heard of the trainer for 0s; the same command goes on"):
        ance.place(config(role="inferencer", patience=0.01), tmp_path)
