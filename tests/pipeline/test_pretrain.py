"""Pre-training as real processes: killed, stopped, spread over processes; it always ends in the same parameters."""

import json
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from launching import finish, launch, metrics, once, start, start_together, wait_for
from safetensors.numpy import load_file

STEPS, SAVE, LOG = 60, 4, 2
SHAPE = {"encoder.layers": 1, "encoder.hidden": 16, "encoder.intermediate": 32, "batch_size": 8, "optimizer.lr": 0.003}
CADENCE = {"steps": STEPS, "cadence.save": SAVE, "cadence.log": LOG}


def command(tokens: Path, workdir: Path, **more: object) -> list[str]:
    keys = {"tokens": tokens, **SHAPE, **CADENCE, **{name.replace("__", "."): value for name, value in more.items()}}
    card = ["--config", "configs/pretrain/mlm.py:smoke", "--workdir", str(workdir)]
    return ["pretrain", *card, *(f"--config.{key}={value}" for key, value in keys.items())]


def logged(workdir: Path) -> list[tuple[int, float]]:
    """(step, loss) of every line of training in the events, in the order of the file."""
    lines = [json.loads(line) for line in (workdir / "events.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]


def committed(workdir: Path) -> list[int]:
    return sorted(int(folder.name) for folder in (workdir / "checkpoints").iterdir() if folder.name.isdigit())


def assert_equal_to(reference: Path, workdir: Path, done, different_at: Sequence[int] = ()) -> None:
    """Bit-equal parameters, every logged loss once and equal, nothing unfinished left behind."""
    assert metrics(done)["params_sha256"] == json.loads((reference / "metrics.json").read_text())["params_sha256"]
    assert metrics(done)["loss"] == logged(reference)[-1][1]
    assert [step for step, _ in logged(workdir)] == list(range(LOG, STEPS + 1, LOG))
    different = [step for (step, ours), (_, theirs) in zip(logged(workdir), logged(reference), strict=True) if ours != theirs]
    assert different == list(different_at)
    assert not [path for path in (workdir / "checkpoints").iterdir() if not path.name.isdigit()]
    assert committed(workdir) == [STEPS - SAVE, STEPS]


@pytest.fixture(scope="session")
def reference(made, tokens) -> Path:
    """A run that nothing disturbed. It crosses the border of an epoch, in the middle of a batch, seven times."""
    return once(made, "reference", lambda folder: launch(*command(tokens, folder)))


def test_killed_at_named_places(reference, tokens, tmp_path):
    run = tmp_path / "run"
    for place in ("during_save:2", "step:1", "export:1"):
        launch(*command(tokens, run), code=-signal.SIGKILL, DENSEIR_FAILPOINT=place)
        assert not (run / "manifest.json").exists()
        if place == "step:1":  # the second life has not logged yet: what the first wrote after its checkpoint is gone
            assert max((step for step, _ in logged(run)), default=0) <= max(committed(run))
    assert committed(run)[-1] == STEPS
    assert_equal_to(reference, run, launch(*command(tokens, run)))


def test_killed_at_random_times(reference, tokens, tmp_path):
    run, draw, killed = tmp_path / "run", random.Random(7), 0
    for _ in range(2):
        process = start(*command(tokens, run))
        wait_for(run / "checkpoints", process, draw.uniform(0.5, 2.5))
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed
    assert_equal_to(reference, run, launch(*command(tokens, run)))


def test_stopped_by_a_signal(reference, tokens, tmp_path):
    run = tmp_path / "run"
    process = start(*command(tokens, run))
    wait_for(run / "checkpoints" / str(SAVE), process)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process, code=75)
    step = committed(run)[-1]
    assert f"stopped at step {step}, saved; the same command goes on" in stopped.stderr
    done = launch(*command(tokens, run))
    assert f"goes on from step {step}\n" in done.stderr
    # A line of the log is a mean over the steps since the one before; here its first step belongs to the life that was stopped.
    assert_equal_to(reference, run, done, different_at=[step + 1] if step % LOG else [])


def test_two_processes_stopped_then_killed_then_one_goes_on(reference, tokens, tmp_path):
    """2 processes x 4 devices, stopped by a signal to one of them; again, killed; then 1 process x 8 devices finishes."""
    run = tmp_path / "run"
    both = start_together(*command(tokens, run), processes=2, devices=4)
    wait_for(run / "checkpoints" / str(SAVE), both[0])
    both[1].send_signal(signal.SIGTERM)
    messages = [finish(process, code=75).stderr for process in both]
    step = committed(run)[-1]
    assert all(f"stopped at step {step}, saved" in message for message in messages)

    both = start_together(*command(tokens, run), processes=2, devices=4, DENSEIR_FAILPOINT="before_save:2")
    for process in both:
        finish(process, code=-signal.SIGKILL)
    assert committed(run)[-1] > step

    done = launch(*command(tokens, run), devices=8)
    assert "mesh data 8 x fsdp 1 x tensor 1" in done.stderr
    got, want = dict(logged(run)), dict(logged(reference))
    assert list(got) == list(want)
    np.testing.assert_allclose([got[s] for s in (2, 4)], [want[s] for s in (2, 4)], rtol=1e-6)
    np.testing.assert_allclose(list(got.values()), list(want.values()), rtol=1e-5)
    ours, theirs = (load_file(folder / "params.safetensors") for folder in (run, reference))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():  # a key bias has no true gradient: Adam makes steps of its noise
        limit = 1e-3 if name.endswith("key/bias") else 1e-5 * np.abs(tensor).max()
        np.testing.assert_allclose(ours[name], tensor, rtol=0, atol=limit, err_msg=name)
