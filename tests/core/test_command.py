"""The command line, as a script would use it: exit codes, one line on errors, JSON as the last line."""

import json
import subprocess
import sys
import textwrap

import pytest

CARD = """
import dataclasses, signal, os
from denseir_jax.core import config, signals
from denseir_jax.core.command import Stage, main
from denseir_jax.core.errors import InputError

@dataclasses.dataclass(frozen=True)
class Optimizer:
    lr: float = 1.0

@dataclasses.dataclass(frozen=True)
class Settings:
    corpus: str = ""
    steps: int = config.operational(3)
    start: str | None = None
    measures: tuple[str, ...] = ("RR@10",)
    optimizer: Optimizer = Optimizer()

def get_config(arg="base"):
    return config.card(Settings(corpus=arg))

def work(run):
    if run.config.corpus == "bad":
        raise InputError("x.jsonl:3: no text; expected a string")
    if run.config.corpus == "fault":
        raise RuntimeError("ours")
    if run.config.corpus == "term":
        os.kill(os.getpid(), signal.SIGTERM)
        signals.check()
    print("hello")
    run.finish({"corpus": run.config.corpus, "start": run.config.start, "measures": run.config.measures})
    return run.finished()

if __name__ == "__main__":
    main(Stage("work", Settings, work, lambda config: {}, "A stage."))
"""


@pytest.fixture
def call(tmp_path):
    (tmp_path / "card.py").write_text(textwrap.dedent(CARD))

    def run(*arguments):
        return subprocess.run([sys.executable, "card.py", *arguments], cwd=tmp_path, capture_output=True, text=True)

    return run


def test_done(call):
    done = call("--config", "card.py:tiny", "--workdir", "w", "--config.start=hf:x", "--config.measures=a,b", "--config.optimizer.lr=3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "stage": "work",
        "workdir": "w",
        "metrics": {"corpus": "tiny", "start": "hf:x", "measures": ["a", "b"]},
    }
    again = call("--config", "card.py:tiny", "--workdir", "w", "--config.start=hf:x", "--config.measures=a,b", "--config.optimizer.lr=3")
    assert again.returncode == 0 and "already finished" in again.stderr and "hello" not in again.stdout
    assert json.loads(again.stdout.splitlines()[-1])["metrics"]["corpus"] == "tiny"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--config", "card.py:bad", "--workdir", "w"), "x.jsonl:3: no text"),
        (("--config", "card.py", "--workdir", "w", "--config.optimizer.lrr=3"), "did you mean 'lr'"),
        (("--config", "card.py", "--workdir", "w", "--config.step=3"), "did you mean 'steps'"),
        (("--config", "card.py", "--workdir", "w", "--config.optimizer.lr=fast"), "fast"),
        (("--config", "card.py", "--workdir", "w", "--config.steps=1.5"), "1.5"),
        (("--config", "nothing.py", "--workdir", "w"), "'nothing.py' does not exist"),
        (("--config", "card.py"), "--workdir is missing"),
        (("--workdir", "w"), "--config is missing"),
        (("--config", "card.py", "--workdr", "w"), "did you mean 'workdir'"),
        (("--config", "card.py", "--workdir", "w", "stray"), "stray"),
        (("--config", "card.py", "--workdir", "card.py"), "expected a folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(call, arguments, words):
    done = call(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and len(done.stderr.strip().splitlines()) == 1 and not done.stdout


def test_a_fault_of_ours_is_1_and_a_signal_is_75(call):
    fault = call("--config", "card.py:fault", "--workdir", "w1")
    assert fault.returncode == 1 and "RuntimeError: ours" in fault.stderr
    stopped = call("--config", "card.py:term", "--workdir", "w2")
    assert stopped.returncode == 75 and "SIGTERM" in stopped.stderr


def test_help_lists_the_keys(call):
    done = call("--help")
    assert done.returncode == 0 and "--config.optimizer" in done.stdout and "--workdir" in done.stdout
