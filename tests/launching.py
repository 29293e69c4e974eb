"""Real processes for tests: a launch command, killed or not, on one process or several."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


# Tests compile much and compute little. A flag that XLA does not know ends the process, so it is given where it was tried.
QUICK_XLA = "--xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else ""


def once(folder: Path, name: str, make: Callable[[Path], object]) -> Path:
    """``folder/name``, made by the first of all test workers that asks; the others wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / f"{name}.done").exists():
            make(folder / name)
            (folder / f"{name}.done").touch()
    return folder / name


def environment(devices: int = 1, **more: str) -> dict[str, str]:
    """This process's environment with so many fake devices and nothing of a test's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DENSEIR_", "XLA_FLAGS", "PYTEST"))}
    flags = f"--xla_force_host_platform_device_count={devices} {QUICK_XLA}".strip()
    return {**kept, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", **more}


def start(stage: str, *arguments: str, devices: int = 1, **more: str) -> subprocess.Popen:
    """Start ``python launch/<stage>.py`` and do not wait for it."""
    command = [sys.executable, str(ROOT / "launch" / f"{stage}.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment(devices, **more))


def finish(process: subprocess.Popen, code: int = 0) -> subprocess.CompletedProcess:
    """Wait for the end and check the exit code; nothing is left running."""
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, f"exit code {process.returncode}, expected {code}\n{out}\n{err}"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def launch(stage: str, *arguments: str, devices: int = 1, code: int = 0, **more: str) -> subprocess.CompletedProcess:
    """Run ``python launch/<stage>.py`` to its end and check its exit code."""
    return finish(start(stage, *arguments, devices=devices, **more), code)


def metrics(done: subprocess.CompletedProcess) -> dict[str, Any]:
    """The metrics in the last line of standard output."""
    return json.loads(done.stdout.splitlines()[-1])["metrics"]


def start_together(stage: str, *arguments: str, processes: int, devices: int, **more: str) -> list[subprocess.Popen]:
    """Start one command as several processes of one JAX job on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    job = {"DENSEIR_COORDINATOR": address, "DENSEIR_PROCESSES": str(processes)}
    return [start(stage, *arguments, devices=devices, DENSEIR_PROCESS_ID=str(i), **job, **more) for i in range(processes)]


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 0.0) -> None:
    """Until some seconds after `path` has appeared, or until the process has ended."""
    deadline = time.monotonic() + 200
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if process.poll() is None:
        time.sleep(seconds)
