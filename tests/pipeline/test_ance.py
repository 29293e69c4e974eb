"""ANCE with real processes that are killed at named places and at random: nothing is lost, and the trainer can be replayed."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from launching import finish, launch, metrics, once, start, wait_for

from denseir_jax.core.command import execute
from denseir_jax.data.examples import read_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.pipeline.ance.sets import SetLog, Sets
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.mine import stage as mine
from denseir_jax.search.retriever import load_retriever

KEYS = {
    "encoder.layers": 1,
    "encoder.hidden": 16,
    "encoder.intermediate": 16,
    "embedder.pooling": "mean",
    "embedder.projection": 0,
    "cadence.log": 25,
    "cadence.save": 25,
    "cadence.keep": 1000,
    "refresh.shard_rows": 16,
    "poll": 10,  # so that set 0 is still in use at the first checkpoint, and kept for a replay
    "rewarm": 7,
    "optimizer.schedule": "constant",  # so that the number of steps, which changes from life to life, matters to nothing
}

DELAYS = np.random.default_rng(20).uniform(0, [3, 0.5])  # seconds until a kill at no named place; the same every time


@pytest.fixture(scope="session")
def warm_up(made, beir) -> Path:
    """What BM25 finds, which is next to nothing: set 0."""
    return once(made, "negatives", lambda folder: execute(mine, MineConfig(dataset=f"beir:{beir}", depth=5, hi=5, n=3), folder))


@pytest.fixture
def words(beir, beir_tokens, warm_up):
    """A command line of the smallest model, with some keys changed."""

    def command(workdir: Path, **more: object) -> list[str]:
        keys = {"dataset": f"beir:{beir}", "tokens": beir_tokens, "training_set": warm_up, "role": "both", **KEYS, **more}
        named = [f"--config.{name.replace('__', '.')}={value}" for name, value in keys.items()]
        return ["ance", "--config", "configs/ance.py:smoke", "--workdir", str(workdir), *named]

    return command


def check_sets(run: Path) -> SetLog:
    """Numbers without a gap, every set whole and as it says, no set older than the one before; the log within them."""
    sets, log = Sets(run / "sets"), SetLog(run / "sets.log")
    assert sets.numbers() == list(range(sets.numbers()[0], sets.newest() + 1))
    facts = {number: sets.facts(number) for number in sets.numbers()}
    for found in facts.values():
        lines = list(read_examples(sets.examples(found.number, found.sha256), BadRows("error")))
        assert len(lines) == found.queries == 240
        mined = {line.query_id for line in lines[(found.number - 1) % 2 :: 2]} if found.number else set()
        assert {line.query_id for line in lines if "ance" in line.negatives} >= mined and found.mined == len(mined)
    steps = [found.checkpoint_step for found in facts.values()]
    assert steps == sorted(set(steps)), "each set is of a newer checkpoint than the one before"
    for taken in (taken for taken in log.entries if taken.set in facts):
        assert taken.sha256 == facts[taken.set].sha256 and taken.step >= facts[taken.set].checkpoint_step
    return log


def check_events(run: Path, log: SetLog, every: int, steps: int) -> None:
    """One log line at each step, whatever was killed, with the staleness that the sets tell."""
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in lines] == list(range(every, steps + 1, every))
    for line in lines:
        taken = log.at(line["step"] - 1)
        assert line["set"] == taken.set
        if taken.set not in Sets(run / "sets").numbers():  # no kept checkpoint needs it
            continue
        assert line["staleness"] == line["step"] - Sets(run / "sets").facts(taken.set).checkpoint_step
        pace = min((line["step"] - taken.step) / 8, 1) if taken.set else 1
        assert line["pace"] == pytest.approx(pace)
    assert (run / "staleness.png").read_bytes().startswith(b"\x89PNG")


def replay(run: Path, folder: Path, command: list[str]) -> dict:
    """Train anew, alone and at once, on the sets and the log that another run left."""
    folder.mkdir()
    for taken in SetLog(run / "sets.log").entries:  # those that came too late for any step would be taken now
        shutil.copytree(Sets(run / "sets").path(taken.set), Sets(folder / "sets").path(taken.set))
    shutil.copy(run / "sets.log", folder / "sets.log")
    # Only a run folder may be entered: this one is at its very beginning.
    shutil.copy(run / "config.json", folder / "config.json")
    done = launch(*command)
    assert (folder / "sets.log").read_bytes() == (run / "sets.log").read_bytes()
    assert done.stderr.count("(on_silence=continue)") <= 1
    return metrics(done)


def test_killed_at_every_named_place_nothing_is_lost_and_a_replay_is_equal(words, tmp_path):
    """Trainer and inferencer as two commands; whoever dies is started again, to die at the next place, then at any moment."""
    run = tmp_path / "run"
    # The trainer waits wherever no inferencer is alive, so both advance together.
    ways = {"trainer": {"role": "trainer", "patience": 1.0}, "inferencer": {"role": "inferencer", "patience": 100.0}}
    # Other places of a round are shown in test_ance_parts.py, of a checkpoint and of a shard with those.
    places = {"trainer": ["ance_logged:2", ""], "inferencer": ["ance_mid_publish:1", ""]}
    running, said, deadline = {}, "", time.monotonic() + 500
    try:
        while (any(places.values()) or (Sets(run / "sets").newest() or 0) < 3) and time.monotonic() < deadline:
            for role, left in places.items():
                if role in running and running[role].poll() is not None:
                    assert running[role].returncode == -signal.SIGKILL, running[role].communicate()
                    said += running.pop(role).communicate()[1]
                if role not in running:
                    running[role] = start(*words(run, steps=1_000_000, **ways[role]), DENSEIR_FAILPOINT=left.pop(0))
            time.sleep(0.05)
        assert not any(places.values()), "each place was reached"
        time.sleep(DELAYS[0])
        for process in running.values():
            process.kill()
            said += process.communicate()[1]
        steps = 25 * (last_step(run) // 25 + 3)
        running["inferencer"] = start(*words(run, steps=1_000_000, **ways["inferencer"]))
        own = metrics(launch(*words(run, steps=steps, **ways["trainer"])))
        finish(running["inferencer"])
    finally:
        for process in running.values():
            process.kill()
    assert "training waits for it at step" in said
    log = check_sets(run)
    assert len(log.entries) > 2
    check_events(run, log, 25, steps)
    again = tmp_path / "again"
    found = replay(run, again, words(again, role="trainer", steps=steps, on_silence="continue", patience=0.01))
    assert found["params_sha256"] == own["params_sha256"] and found["loss"] == own["loss"]


def last_step(run: Path) -> int:
    return max((int(found.name) for found in (run / "checkpoints").glob("[0-9]*") if found.name.isdigit()), default=0)


def test_one_command_survives_kills_of_either_side(words, tmp_path):
    """kill -9 of the inferencer: the trainer starts another. kill -9 of the trainer: its inferencer ends, a restart goes on."""
    run, more = tmp_path / "run", {"cadence.save": 50, "cadence.log": 50, "patience": 60.0, "refresh.dev_split": "dev"}
    first = start(*words(run, steps=1_000_000, **more))
    try:
        wait_for(run / "heartbeats/inferencer.json", first)
        child = json.loads((run / "heartbeats/inferencer.json").read_text())["pid"]
        os.kill(child, signal.SIGKILL)
        wait_for(run / "sets/000001", first)
        other = json.loads((run / "heartbeats/inferencer.json").read_text())["pid"]
        assert other != child and first.poll() is None
        time.sleep(DELAYS[1])
        first.kill()
        told = first.communicate()[1]
    finally:
        first.kill()
    assert "the inferencer was killed by signal 9; it is started again" in told
    deadline = time.monotonic() + 10
    while _alive(other) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(other), "an inferencer does not outlive its trainer"
    steps = 50 * (last_step(run) // 50 + 3)
    done = launch(*words(run, steps=steps, **more))
    assert "Fatal" not in done.stderr and "Traceback" not in done.stderr
    log = check_sets(run)
    check_events(run, log, 50, steps)
    assert {"nDCG@10", "RR@10"} == Sets(run / "sets").facts(1).dev.keys()
    assert metrics(done)["retriever_sha256"] == load_retriever(f"run:{run}").params_sha256


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_trainer_that_waits_for_an_inferencer_can_be_stopped(words, tmp_path):
    """None was ever started. What the other policies do is shown in test_ance_parts.py: on_silence=stop asks as a signal does."""
    patient = start(*words(tmp_path / "wait", role="trainer", steps=40, patience=0.3))
    deadline, heartbeat = time.monotonic() + 100, tmp_path / "wait/heartbeats/trainer.json"
    while not (heartbeat.exists() and json.loads(heartbeat.read_text())["state"] == "waiting") and time.monotonic() < deadline:
        time.sleep(0.05)
    patient.send_signal(signal.SIGTERM)
    told = finish(patient, code=75).stderr
    assert "ance: the inferencer has been silent for " in told and "(on_silence=wait)" in told and ", saved; the same" in told


def test_in_turn_it_is_the_same_every_time_and_learns(words, tmp_path):
    """Killed between publishing and logging, under LAMB, with a learning rate that rises again on each set."""
    more = {"role": "sliced", "steps": 80, "cadence.save": 20, "cadence.log": 20, "batch_size": 32, "refresh.dev_split": "dev"}
    more |= {"objective.similarity": "cosine", "objective.temperature": 0.05, "optimizer.name": "lamb", "optimizer.lr": 0.03}
    more |= {"optimizer.schedule": "linear"}
    more |= {"encoder.hidden": 32, "encoder.dropout": 0.0, "encoder.attention_dropout": 0.0}
    whole, run = tmp_path / "whole", tmp_path / "run"
    done = launch(*words(whole, **more))
    want, want_told = metrics(done), done.stderr
    launch(*words(run, **more), code=-signal.SIGKILL, DENSEIR_FAILPOINT="ance_published:2")
    got = metrics(launch(*words(run, **more)))
    assert got["params_sha256"] == want["params_sha256"]
    told = [line for line in want_told.splitlines() if "have too few negatives" in line]
    assert told and all(" queries of set 0 " in line or " queries of set 1 " in line for line in told), told
    counts = [json.loads((folder / "manifest.json").read_text())["counts"] for folder in (whole, run)]
    assert counts[0] == counts[1] and counts[0]["short"] == 0 and counts[0]["queries"] == 240, "of the last set, not of the first"
    logs = [SetLog(folder / "sets.log").entries for folder in (whole, run)]
    assert logs[0] == logs[1] and [(taken.set, taken.step) for taken in logs[0]] == [(0, 0), (1, 20), (2, 40), (3, 60)]
    lines = [json.loads(line) for line in (run / "inferencer/events.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] in ([20, 40, 60], [20, 60]), "a line may be lost with the life that would have written it"
    first, last = (Sets(run / "sets").facts(number).dev["RR@10"] for number in (1, 3))
    assert last > first + 0.1 and last > 0.7, "new queries find their passages better and better"
    check_events(run, check_sets(run), 20, 80)
