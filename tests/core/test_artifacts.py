"""Run folders: whole or absent, taken by one config, hashed."""

import dataclasses
import json

import numpy as np
import pytest

from denseir_jax.core import artifacts, config
from denseir_jax.core.errors import InputError
from denseir_jax.core.events import Events, last_logged, read


@dataclasses.dataclass(frozen=True)
class Settings:
    lr: float = 1.0
    steps: int = config.operational(10)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    artifacts.write_text(path, "old")
    with pytest.raises(RuntimeError), artifacts.new_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_new_folder_replaces_the_old_one_whole(tmp_path):
    for name in ("one", "two"):
        with artifacts.new_folder(tmp_path / "f") as temporary:
            (temporary / name).write_text(name)
    assert [p.name for p in (tmp_path / "f").iterdir()] == ["two"]
    with pytest.raises(RuntimeError), artifacts.new_folder(tmp_path / "f") as temporary:
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_json_is_byte_stable_and_has_no_nan(tmp_path):
    artifacts.write_json(tmp_path / "a", {"b": float("nan"), "a": np.float32(1.5)})
    artifacts.write_json(tmp_path / "b", {"a": 1.5, "b": None})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_arrays_hash_sees_names_shapes_and_bytes():
    a = {"x": np.arange(6, dtype=np.float32), "y": np.ones(2, np.float32)}
    same = dict(reversed(a.items()))
    assert artifacts.arrays_sha256(a) == artifacts.arrays_sha256(same)
    for other in ({**a, "x": a["x"].reshape(2, 3)}, {"z": a["x"], "y": a["y"]}, {**a, "y": a["y"] * 2}):
        assert artifacts.arrays_sha256(a) != artifacts.arrays_sha256(other)


def test_a_folder_is_refused_to_another_config_and_the_keys_are_named(tmp_path):
    folder = tmp_path / "run"
    artifacts.Run(folder, "train", Settings(lr=9.0)).open({})
    artifacts.Run(folder, "train", Settings()).open({})  # nothing was made yet: the folder is free
    (folder / "artifact").write_text("x")
    artifacts.Run(folder, "train", Settings(steps=99)).open({})  # operational: may differ
    with pytest.raises(InputError, match=r"lr: 1.0 there, 2.0 here"):
        artifacts.Run(folder, "train", Settings(lr=2.0)).open({})
    with pytest.raises(InputError, match="stage 'train', not 'encode'"):
        artifacts.Run(folder, "encode", Settings()).open({})
    (folder / "artifact").write_text("x")
    artifacts.Run(folder, "train", Settings(lr=2.0)).open({}, overwrite=True)
    assert not (folder / "artifact").exists()


def test_a_folder_of_something_else_is_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"thesis.tex"):
        artifacts.Run(tmp_path, "train", Settings()).open({})
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_changed_inputs_are_refused(tmp_path):
    source = tmp_path / "corpus.txt"
    source.write_text("a")
    artifacts.Run(tmp_path / "run", "prepare", Settings()).open({"corpus": source})
    (tmp_path / "run" / "artifact").write_text("x")
    source.write_text("b")
    with pytest.raises(InputError, match="corpus changed"):
        artifacts.Run(tmp_path / "run", "prepare", Settings()).open({"corpus": source})


def test_finish_writes_the_manifest_last_and_hashes_outputs(tmp_path):
    run = artifacts.Run(tmp_path / "run", "train", Settings()).open({})
    assert run.finished() is None
    (run.path / "out").write_text("x")
    run.finish({"loss": 1.0}, ["out"], counts={"rows": 3})
    assert run.finished() == {"loss": 1.0}
    manifest = artifacts.finished_run(run.path, ("train",))
    assert manifest["outputs"]["out"] == artifacts.file_sha256(run.path / "out") and manifest["counts"] == {"rows": 3}
    with pytest.raises(InputError, match="expected encode"):
        artifacts.finished_run(run.path, ("encode",))


def test_events_after_the_restored_step_are_cut_and_torn_lines_left_out(tmp_path):
    events = Events(tmp_path)
    for step in (1, 2, 3):
        events.write("train", step, {"loss": 1.0 / step})
    events.close()
    with open(tmp_path / "events.jsonl", "a") as stream:
        stream.write('{"kind": "train", "st')
    Events(tmp_path, from_step=2).close()
    assert [line["step"] for line in read(tmp_path / "events.jsonl")] == [1, 2]
    assert all(json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines())


def test_a_mean_over_nothing_is_no_number_in_the_last_log_line_too(tmp_path):
    events = Events(tmp_path)
    events.write("train", 1, {"loss": 1.0, "met_again": float("nan")})
    events.close()
    assert read(tmp_path / "events.jsonl")[0]["met_again"] is None
    last = last_logged(tmp_path)
    assert last["loss"] == 1 and f"{last['met_again']:.4g}" == "nan"


def test_a_folder_is_held_by_one_run_at_a_time(tmp_path):
    first = artifacts.Run(tmp_path / "run", "train", Settings()).open({})
    with pytest.raises(InputError, match="in use by another process"):
        artifacts.Run(tmp_path / "run", "train", Settings()).open({})
    artifacts.Run(tmp_path / "run", "train", Settings(), primary=False).open({})  # one of the same job
    first.close()
    artifacts.Run(tmp_path / "run", "train", Settings()).open({})


def test_overwrite_empties_run_folders_alone_and_follows_no_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="only a run folder can be overwritten"):
        artifacts.Run(outside, "train", Settings()).open({}, overwrite=True)
    artifacts.Run(tmp_path / "run", "train", Settings()).open({})
    (tmp_path / "run" / "link").symlink_to(outside)
    artifacts.Run(tmp_path / "run", "train", Settings(lr=3.0)).open({}, overwrite=True)
    assert (outside / "thesis.tex").exists() and not (tmp_path / "run" / "link").exists()


def test_a_run_whose_outputs_are_gone_is_not_finished(tmp_path):
    run = artifacts.Run(tmp_path / "run", "train", Settings()).open({})
    (run.path / "out").write_text("x")
    run.finish({"loss": 1.0}, ["out"])
    (run.path / "out").unlink()
    assert run.finished() is None


@pytest.mark.parametrize("content", ["{}", "[]", "5"])
def test_a_manifest_that_is_none_is_said_so(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match="not the manifest of a run"):
        artifacts.finished_run(tmp_path)
