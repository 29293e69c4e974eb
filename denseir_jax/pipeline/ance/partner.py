"""The inferencer as the trainer sees it: a process that it started, or one elsewhere; what to do when it falls silent."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from denseir_jax.core import console, signals
from denseir_jax.core.errors import EXIT_STOPPED, ConfigError
from denseir_jax.pipeline.ance.config import HEARTBEATS, INFERENCER, SETS, AnceConfig
from denseir_jax.pipeline.ance.heartbeat import Heart, Listener
from denseir_jax.pipeline.ance.sets import Sets

_LIVES = 3  # of an inferencer that is killed again and again before it has published anything
_GRACE = 5.0  # seconds in which it may end by itself


class Partner:
    """Starts the inferencer (role=both), keeps it alive, and applies the policy on silence. A context manager."""

    def __init__(self, workdir: Path, config: AnceConfig, heart: Heart, environment: dict[str, str]):
        self.workdir, self.config, self._heart, self._environment = workdir, config, heart, environment
        self._listener, self._sets = Listener(workdir / HEARTBEATS / f"{INFERENCER}.json"), Sets(workdir / SETS)
        self._child: subprocess.Popen[bytes] | None = None
        self._ended, self._deaths, self._published, self._told = "", 0, self._sets.newest(), False

    def __enter__(self) -> "Partner":
        if self.config.role == "both":
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()  # what it waits for; it loses nothing by ending at once
            try:
                self._child.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()

    def attend(self, step: int) -> None:
        """See whether the inferencer lives; if not, say so once, and wait, go on or ask to stop, as the policy says."""
        fault = self._fault()
        if fault and not self._told and not signals.received():
            self._told, policy = True, self.config.on_silence
            does = {"wait": f"training waits for it at step {step:,}", "continue": "training goes on with the set it has"}
            console.say(f"ance: the inferencer {fault}; {does.get(policy, 'training stops')} (on_silence={policy})")
        if fault and self.config.on_silence == "stop":
            signals.ask()
        self._heart.state = "waiting" if fault and self.config.on_silence == "wait" else "training"
        while fault and self.config.on_silence == "wait" and not signals.received():
            time.sleep(0.2)
            fault = self._fault()
        if not fault and self._told:
            console.say("ance: the inferencer is heard again")
            self._told = False
        self._heart.state = "training"

    def _fault(self) -> str:
        """Why no more sets are to be expected, or ""."""
        self._keep()
        if self._ended and not self._listener.heard:
            return self._ended
        silence = self._listener.silence
        if silence == float("inf"):
            return "has died" if self._listener.state not in ("stopped", "finished") else "has stopped"
        return f"has been silent for {console.duration(silence)}" if silence > self.config.patience else ""

    def _keep(self) -> None:
        """Start a child again that was killed or stopped; one that found a fault has said it, and would say it again."""
        if self._child is None or self._child.poll() is None:
            return
        newest, code = self._sets.newest(), self._child.returncode
        self._deaths = 1 if newest != self._published else self._deaths + 1
        self._published, self._child = newest, None
        how = f"was killed by signal {-code}" if code < 0 else f"has ended with exit code {code}"
        if (code < 0 or code == EXIT_STOPPED) and self._deaths < _LIVES and not signals.received():
            console.say(f"ance: the inferencer {how}; it is started again")
            self._start()
        else:
            self._listener.start_anew()  # one that is started by hand can still be heard
            self._ended = f"{how}, {self._deaths} times without a new set" if self._deaths > 1 else how

    def _start(self) -> None:
        package = Path(__file__).resolve().parents[3]
        path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._listener.start_anew()
        # Its standard input is a pipe that only this process holds: it ends when we do, however that comes about.
        command = [sys.executable, "-m", "denseir_jax.pipeline.ance.child", str(self.workdir)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **self._environment, "PYTHONPATH": path})


def shares(inferencer_devices: int) -> tuple[dict[str, str], dict[str, str]]:
    """Settings of the environment by which trainer and inferencer divide this machine's GPUs; nothing where there is none.

    Raises:
        ConfigError: there are not so many.
    """
    gpus = _gpus()
    if inferencer_devices >= max(len(gpus), 1):
        raise ConfigError(f"inferencer_devices={inferencer_devices} of {len(gpus)} GPUs leaves the trainer none; 0 shares what there is")
    if not gpus:
        return {}, {}
    if not inferencer_devices:
        half = {"XLA_PYTHON_CLIENT_MEM_FRACTION": os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.45")}
        return half, half
    own, others = gpus[:-inferencer_devices], gpus[-inferencer_devices:]
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}, {"CUDA_VISIBLE_DEVICES": ",".join(others)}


def _gpus() -> list[str]:
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    return sorted((found.name[6:] for found in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", found.name)), key=int)
