"""Real processes for tests: a launch command, killed or not, on one process or several."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def environment(devices: int = 1, **more: str) -> dict[str, str]:
    """This process's environment with so many fake devices and nothing of a test's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DENSEIR_", "XLA_FLAGS", "PYTEST"))}
    return {**kept, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", **more}


def start(stage: str, *arguments: str, devices: int = 1, **more: str) -> subprocess.Popen:
    """Start ``python launch/<stage>.py`` and do not wait for it."""
    command = [sys.executable, str(ROOT / "launch" / f"{stage}.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment(devices, **more))


def launch(stage: str, *arguments: str, devices: int = 1, code: int = 0, **more: str) -> subprocess.CompletedProcess:
    """Run ``python launch/<stage>.py`` to its end and check its exit code."""
    process = start(stage, *arguments, devices=devices, **more)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, f"exit code {process.returncode}, expected {code}\n{out}\n{err}"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def metrics(done: subprocess.CompletedProcess) -> dict[str, Any]:
    """The metrics in the last line of standard output."""
    return json.loads(done.stdout.splitlines()[-1])["metrics"]


def launch_together(
    stage: str, *arguments: str, processes: int, devices: int, code: int = 0, **more: str
) -> list[subprocess.CompletedProcess]:
    """Run one command as several processes of one JAX job on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    job = {"DENSEIR_COORDINATOR": address, "DENSEIR_PROCESSES": str(processes)}
    started = [start(stage, *arguments, devices=devices, DENSEIR_PROCESS_ID=str(i), **job, **more) for i in range(processes)]
    done = []
    for process in started:
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, f"exit code {process.returncode}, expected {code}\n{out}\n{err}"
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def kill_when(process: subprocess.Popen, folder: Path, seconds: float, number: int = signal.SIGKILL) -> int:
    """Send a signal some seconds after `folder` has appeared (or once the process has ended); return its exit code."""
    deadline = time.monotonic() + 200
    while not folder.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(seconds)
    if process.poll() is None:
        process.send_signal(number)
    process.communicate(timeout=200)
    return process.returncode
