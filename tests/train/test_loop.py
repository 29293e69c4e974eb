"""The loop: going on, stopping for what is not finite, what is kept and what is exported."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from toy_rows import Line, ToyRows, build

from denseir_jax.core.artifacts import Run
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.parallel.mesh import MeshConfig
from denseir_jax.train import loop
from denseir_jax.train.loop import Cadence, Plan
from denseir_jax.train.optimizer import OptimizerConfig
from denseir_jax.train.state import nested, on_host

PLAN = Plan(
    steps=6,
    batch_size=16,
    seed=5,
    micro_batches=1,
    optimizer=OptimizerConfig(lr=1e-2, warmup=0.0, schedule="constant"),
    mesh=MeshConfig(),
    cadence=Cadence(log=2, save=3, keep=2),
)


def train(folder: Path, probe: Any = None, initial: Any = None, objective: Any = Line(), meta: Any = None, **changes: Any):
    """(exported parameters by name, steps, last metrics) of a run in `folder`."""
    folder.mkdir(exist_ok=True)
    plan = dataclasses.replace(PLAN, **changes)
    running = loop.Loop(Run(folder, "toy", None), objective, ToyRows(objective), plan, probe, meta or {"tokenizer": "a"})
    params, steps, last = running.train(initial or {})
    return on_host(params), steps, last


def committed(folder: Path) -> list[int]:
    return sorted(int(found.name) for found in (folder / "checkpoints").iterdir())


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, (folder / "events.jsonl").read_text().splitlines()) if line["kind"] == kind]


def assert_close(got: dict, want: dict, atol: float) -> None:
    for name, tensor in want.items():
        np.testing.assert_allclose(got[name], tensor, rtol=0, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """Six steps at once."""
    folder = tmp_path_factory.mktemp("six") / "run"
    return folder, train(folder)


def test_more_steps_go_on_and_fewer_change_nothing(six, tmp_path):
    _, (want, _, last) = six
    train(tmp_path, steps=3)
    got, steps, now = train(tmp_path)
    assert steps == 6 and now["loss"] == last["loss"]
    assert all(np.array_equal(got[name], want[name]) for name in want)
    again, steps, now = train(tmp_path, steps=4)
    assert steps == 6 and now["loss"] == last["loss"], "the last metrics are those of the parameters"
    assert all(np.array_equal(again[name], want[name]) for name in want)


def test_a_decoder_is_saved_and_goes_on_with_its_encoder(one_device, tmp_path):
    """Only the export leaves it behind."""
    seed, often = build("seed", layers=0, scan=True), {"cadence": Cadence(log=1, save=1)}
    want, _, last = train(tmp_path / "whole", objective=seed, steps=2, **often)
    train(tmp_path / "run", objective=seed, steps=1, **often)
    got, steps, now = train(tmp_path / "run", objective=seed, steps=2, **often)
    assert steps == 2 and now["loss"] == last["loss"]
    assert {name.split("/")[0] for name in got} == {"encoder", "mlm_head", "decoder"}
    assert all(np.array_equal(got[name], want[name]) for name in want)
    assert set(seed.towers(nested(got))["encoder"]) == {"encoder"}


@pytest.fixture(scope="module")
def remembering(tmp_path_factory):
    """Three steps at once with a queue of earlier passages, which takes part from the second on."""
    folder, objective = tmp_path_factory.mktemp("remembering") / "run", build("memory", layers=0)
    return objective, folder, train(folder, objective=objective, steps=3, cadence=Cadence(log=1, save=1, keep=3))


def stored(folder: Path, step: int) -> dict[str, np.ndarray]:
    """The memory in a checkpoint."""
    from orbax.checkpoint import v1 as ocp

    with ocp.training.Checkpointer(folder / "checkpoints") as files:
        memory: dict[str, np.ndarray] = files.load_checkpointables(step)["state"]["memory"]
        return {name: np.asarray(leaf) for name, leaf in memory.items()}


def test_a_memory_goes_on_bit_for_bit_and_on_another_mesh(remembering, tmp_path):
    objective, folder, (want, _, last) = remembering
    often: dict[str, Any] = {"objective": objective, "cadence": Cadence(log=1, save=1, keep=3)}
    train(tmp_path / "same", steps=2, **often)
    got, _, now = train(tmp_path / "same", steps=3, **often)
    assert now["loss"] == last["loss"] and all(np.array_equal(got[name], want[name]) for name in want)
    memory, again = stored(folder, 3), stored(tmp_path / "same", 3)
    assert all(np.array_equal(again[name], memory[name]) for name in memory)
    rows = np.concatenate([ToyRows(objective).rows(np.arange(16) + 16 * step)["passage_row"].reshape(-1) for step in range(3)])
    assert memory["stored_row"].tolist() == rows[-40:].tolist() and memory["stored_steps"] == 3

    train(tmp_path / "other", steps=2, **often)
    got, _, now = train(tmp_path / "other", steps=3, micro_batches=2, mesh=MeshConfig(data=2, fsdp=2, tensor=2), **often)
    np.testing.assert_allclose(now["loss"], last["loss"], rtol=1e-6)
    assert_close(got, want, atol=1e-6)
    found = stored(tmp_path / "other", 3)
    assert found["stored_row"].tolist() == memory["stored_row"].tolist()
    np.testing.assert_allclose(found["stored"], memory["stored"], atol=1e-5)


def test_a_memory_fills_before_it_takes_part_and_is_empty_at_a_warm_start(remembering, tmp_path):
    """The first step sees no memory; the second sees it; parameters that are started from bring none."""
    objective, folder, (params, _, _) = remembering
    lines = events(folder, "train")
    assert [line["memory_filled"] for line in lines] == pytest.approx([0, 0.8, 1])
    assert lines[0]["memory_cosine"] is None, "nothing was met again"
    candidates = [line["negatives"] / (1 - line["masked_candidates"]) for line in lines]
    assert candidates == pytest.approx([31, 31 + 32, 31 + 40])
    plain = dataclasses.replace(objective, config=dataclasses.replace(objective.config, memory=0, memory_start=0))
    train(tmp_path / "plain", objective=plain, steps=2, cadence=Cadence(log=1))
    without = events(tmp_path / "plain", "train")
    assert without[0]["loss"] == pytest.approx(lines[0]["loss"], rel=1e-6) and without[1]["loss"] < lines[1]["loss"]
    train(tmp_path / "warm", objective=objective, steps=1, initial=params, cadence=Cadence(log=1))
    assert events(tmp_path / "warm", "train")[0]["memory_filled"] == 0


def test_goes_on_with_other_parts_mesh_and_cadence(six, tmp_path):
    _, (want, _, last) = six
    train(tmp_path, steps=3)
    got, _, _ = train(tmp_path, micro_batches=2, mesh=MeshConfig(data=2, fsdp=2, tensor=2), cadence=Cadence(log=1, save=2, keep=1))
    of_each_step = [line["loss"] for line in events(tmp_path, "train") if line["step"] > 4]
    np.testing.assert_allclose(np.mean(of_each_step), last["loss"], rtol=1e-6)
    assert_close(got, want, atol=1e-6)
    assert committed(tmp_path) == [6]


@pytest.mark.parametrize("changes", [{"batch_size": 32}, {"seed": 6}, {"meta": {"tokenizer": "b"}}])
def test_a_checkpoint_of_other_data_is_refused(six, changes):
    folder, _ = six
    with pytest.raises(InputError, match=r"checkpoint 6 in .* was made with"):
        train(folder, **changes)


def test_a_batch_that_does_not_divide_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(ConfigError, match="batch_size=16 does not divide into 8 device shards x 4 micro-batches"):
        train(tmp_path, micro_batches=4)


def test_poisoned_parameters_stop_the_run_at_their_step(tmp_path):
    with pytest.raises(InputError, match=r"step 1: loss nan, .* the batch holds row0, row1, .* row7 and 8 more"):
        train(tmp_path, initial={"projection/dense/bias": np.full(8, np.nan, np.float32)}, cadence=Cadence(log=5, save=1))
    assert committed(tmp_path) == []


def test_a_step_that_is_not_finite_is_never_saved(tmp_path):
    absurd = OptimizerConfig(lr=1e30, warmup=0.0, schedule="constant", clip=0.0)
    with pytest.raises(InputError, match=r"step (\d): loss (nan|inf)") as stopped:
        train(tmp_path, optimizer=absurd, cadence=Cadence(log=5, save=1))
    step = int(str(stopped.value).split(":")[0].removeprefix("step "))
    assert committed(tmp_path) == list(range(max(1, step - 2), step))
    assert f"row{16 * (step - 1)}" in str(stopped.value)


def test_best_and_newest_checkpoints_are_kept_and_nothing_compiles_again(tmp_path):
    measured, compiled = iter([0.1, 0.9, 0.2, 0.3, 0.8, 0.4]), []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    marks = []

    def probe(params: Any) -> dict[str, float]:
        marks.append(len(compiled))
        return {"RR@10": next(measured), "cosine_mean": 0.5}

    train(tmp_path, probe, cadence=Cadence(log=1, save=0, keep=2, probe=1), best="RR@10")
    jax.monitoring.clear_event_listeners()
    assert [(line["step"], line["RR@10"]) for line in events(tmp_path, "probe")] == list(enumerate([0.1, 0.9, 0.2, 0.3, 0.8, 0.4], 1))
    assert committed(tmp_path) == [2, 5, 6]
    assert marks[0] > 0 and marks[1:] == [marks[1]] * 5


def test_the_average_of_the_parameters_is_exported(tmp_path):
    average, decay = train(tmp_path / "0", steps=1, optimizer=dataclasses.replace(PLAN.optimizer, lr=1e-12))[0], 0.5
    for t in range(3):
        now = train(tmp_path / "plain", steps=t + 1)[0]
        d = min(decay, (1 + t) / (10 + t))
        average = {name: d * average[name] + (1 - d) * now[name] for name in now}
    got = train(tmp_path / "average", steps=3, optimizer=dataclasses.replace(PLAN.optimizer, ema=decay))[0]
    assert_close(got, average, atol=1e-6)
    assert np.abs(got["projection/dense/kernel"] - now["projection/dense/kernel"]).max() > 1e-3


def test_bfloat16_computes_nearly_the_same(tmp_path):
    (got, _, now), (_, _, exact) = (
        train(tmp_path / dtype, objective=build("mlm", layers=0, dtype=dtype), steps=2) for dtype in ("bfloat16", "float32")
    )
    assert now["loss"] != exact["loss"] and abs(now["loss"] - exact["loss"]) < 0.02 * exact["loss"]
    assert {leaf.dtype for leaf in got.values()} == {np.dtype(np.float32)}
