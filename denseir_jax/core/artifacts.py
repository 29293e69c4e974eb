"""The run folder: what a stage leaves on disk appears whole or not at all, and says what made it.

A run folder holds ``config.json`` (resolved, with versions), ``events.jsonl``, ``metrics.json``, the stage's artifacts,
and, written last, ``manifest.json``: its presence means that the stage finished.
"""

import contextlib
import fcntl
import importlib.metadata
import json
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from denseir_jax.core import config as configs
from denseir_jax.core import console
from denseir_jax.core.errors import InputError
from denseir_jax.core.files import arrays_sha256 as arrays_sha256
from denseir_jax.core.files import file_sha256 as file_sha256
from denseir_jax.core.files import finite as finite
from denseir_jax.core.files import json_sha256 as json_sha256
from denseir_jax.core.files import new_file as new_file
from denseir_jax.core.files import new_folder as new_folder
from denseir_jax.core.files import read_json as read_json
from denseir_jax.core.files import sync_folder as sync_folder
from denseir_jax.core.files import text_sha256 as text_sha256
from denseir_jax.core.files import write_array as write_array
from denseir_jax.core.files import write_bytes as write_bytes
from denseir_jax.core.files import write_json as write_json
from denseir_jax.core.files import write_text as write_text

MANIFEST, CONFIG = "manifest.json", "config.json"
_PACKAGES = ("denseir_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers", "scann", "bm25s")


def content_sha256(path: Path) -> str:
    """What identifies an input: a finished run's manifest hash, a file's hash, or a hash over a folder's files.

    Raises:
        InputError: nothing is there.
    """
    if (path / MANIFEST).exists():
        return str(_manifest(path)["sha256"])
    if path.is_file():
        return file_sha256(path)
    if path.is_dir():
        # Names with a dot in front are being written, or a file system's own.
        files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        return json_sha256({str(file.relative_to(path)): file_sha256(file) for file in files})
    raise InputError(f"{path} does not exist")


def versions() -> dict[str, str]:
    """Versions of this library and of what its numbers depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


class Run:
    """One run folder, held by one stage.

    Attributes:
        path: the folder. stage: its name ("pretrain"). config: the parsed config dataclass. primary: whether this
        process writes (one of several does).
    """

    def __init__(self, path: Path, stage: str, config: Any, primary: bool = True):
        self.path, self.stage, self.config, self.primary = Path(path).absolute(), stage, config, primary
        self._held: IO[str] | None = None

    def open(self, inputs: Mapping[str, str | Path], overwrite: bool = False, holds_runs: bool = False) -> "Run":
        """Take the folder: refuse one made by another config or from other inputs, or empty it if told to.

        Args:
            inputs: name -> path (hashed by `content_sha256`) or text (``sha256:...`` taken as it is).
            overwrite: empty the folder first if it differs. holds_runs: but for its run folders, which know by themselves
                whether they still serve.
        Raises:
            InputError: the folder belongs to another config (the differing keys are named), input, or stage.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"workdir {self.path} is a file; expected a folder")
        self.inputs = {name: _identify(value) for name, value in inputs.items()}
        differing = self._differences()
        if differing and not (self.path / CONFIG).is_file():
            raise InputError(f"workdir {self.path} was made {differing}; choose another --workdir: only a run folder can be overwritten")
        self._lock()
        if differing and not overwrite:
            raise InputError(f"workdir {self.path} was made {differing}; choose another --workdir, or pass --overwrite to replace it")
        if differing and self.primary:
            for child in self._children():
                if holds_runs and (child / CONFIG).is_file():
                    continue
                shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
        if self.primary:
            self.path.mkdir(parents=True, exist_ok=True)
            if not (self.path / MANIFEST).exists():  # a finished run keeps the config that it was made with
                self.describe()
        return self

    def describe(self) -> None:
        """Write ``config.json``."""
        write_json(self.path / CONFIG, self._record())

    def _lock(self) -> None:
        """Hold the folder until `close`, or the end of the process: two runs in one folder would spoil each other's files."""
        if not self.primary:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError) as fault:  # a link to nowhere, a file system that has no folders
            raise InputError(f"workdir {self.path} cannot be made: {fault.strerror}") from None
        self._held = open(self.path / ".lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"workdir {self.path} is in use by another process; wait for it, or choose another --workdir") from None
        except OSError:
            console.say(f"warning: {self.path} cannot be locked on this file system; let no other process work in it")

    def close(self) -> None:
        """Let go of the folder."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _children(self) -> list[Path]:
        return [child for child in self.path.iterdir() if child.name != ".lock"] if self.path.is_dir() else []

    def _record(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "config": configs.plain(self.config),
            "identity": configs.identity(self.config),
            "inputs": self.inputs,
            "versions": versions(),
        }

    def _differences(self) -> str:
        """What in the folder does not match, in words; empty when it is new or matches."""
        if not (self.path / CONFIG).exists():
            foreign = [child.name for child in self._children() if not child.name.startswith(".")]
            return f"by something else (it holds {', '.join(sorted(foreign)[:3])} but no {CONFIG})" if foreign else ""
        if {child.name for child in self._children()} <= {CONFIG, "prepare"}:
            return ""  # that run failed before it made anything but tokens, which know by themselves whether they still serve
        old = read_json(self.path / CONFIG)
        if not isinstance(old, dict) or not all(isinstance(old.get(key, {}), dict) for key in ("identity", "inputs")):
            return f"by something else (its {CONFIG} is not ours)"
        if old.get("stage") != self.stage:
            return f"by the stage {old.get('stage')!r}, not {self.stage!r}"
        before, now = old.get("identity", {}), json.loads(json.dumps(finite(configs.identity(self.config))))
        keys = sorted(key for key in {**before, **now} if before.get(key) != now.get(key))
        if keys:
            shown = ", ".join(f"{key}: {before.get(key)!r} there, {now.get(key)!r} here" for key in keys[:4])
            return f"by another config ({shown}{f' and {len(keys) - 4} more keys' if len(keys) > 4 else ''})"
        stale = sorted(
            name for name in {**self.inputs, **old.get("inputs", {})} if self.inputs.get(name) != old.get("inputs", {}).get(name)
        )
        return f"from other inputs ({', '.join(stale)} changed since)" if stale else ""

    def finished(self) -> dict[str, Any] | None:
        """The metrics of a finished run, or None if it is not finished or what it made is no longer all there."""
        if not (self.path / MANIFEST).exists():
            return None
        lost = [name for name in _manifest(self.path)["outputs"] if not (self.path / name).exists()]
        if lost:
            console.say(f"{self.stage}: {self.path / lost[0]} is gone, so the run is not finished")
            return None
        metrics: dict[str, Any] = read_json(self.path / "metrics.json")
        return metrics

    def finish(self, metrics: Mapping[str, Any], outputs: Iterable[str] = (), **facts: Any) -> None:
        """Write ``metrics.json``, then ``manifest.json`` last: from here on the stage is finished.

        Args:
            metrics: the stage's figures. outputs: artifact paths within the folder, hashed into the manifest.
            facts: more for the manifest (counts, recall, template ...).
        """
        if not self.primary:
            return
        write_json(self.path / "metrics.json", metrics)
        hashes = {name: content_sha256(self.path / name) for name in sorted(outputs)}
        manifest = {
            "stage": self.stage,
            "identity": configs.identity(self.config),
            "inputs": self.inputs,
            "outputs": hashes,
            "versions": versions(),
            "command": sys.argv,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **facts,
        }
        # What later stages compare: what was made and how, not when or by which command line.
        manifest["sha256"] = json_sha256([self.stage, manifest["identity"], self.inputs, hashes])
        write_json(self.path / MANIFEST, manifest)


def _manifest(folder: Path) -> dict[str, Any]:
    found = read_json(folder / MANIFEST)
    kinds = {"stage": str, "sha256": str, "inputs": dict, "outputs": dict}
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        raise InputError(f"{folder / MANIFEST} is not the manifest of a run; make the run again")
    return found


def _identify(value: str | Path) -> str:
    text = str(value)
    return text if text.startswith("sha256:") else "sha256:" + content_sha256(Path(value))


def finished_run(path: str | Path, stages: Iterable[str] = ()) -> dict[str, Any]:
    """The manifest of a finished run folder.

    Raises:
        InputError: no folder, not finished, or made by a stage other than `stages`.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"run folder {folder} does not exist")
    if not (folder / MANIFEST).exists():
        raise InputError(f"run folder {folder} holds no {MANIFEST}: its stage has not finished")
    manifest = _manifest(folder)
    wanted = tuple(stages)
    if wanted and manifest["stage"] not in wanted:
        raise InputError(f"run folder {folder} was made by the stage {manifest['stage']!r}; expected {' or '.join(wanted)}")
    return manifest
