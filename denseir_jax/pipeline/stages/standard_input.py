"""A corpus from standard input: read once, so it is kept in the run folder until the stage has done with it."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from denseir_jax.core import artifacts, signals
from denseir_jax.core.artifacts import Run
from denseir_jax.core.console import say
from denseir_jax.core.errors import InputError
from denseir_jax.data import sources
from denseir_jax.data.lines import STDIN, shown

_COPY, _CHUNK = "standard_input", 1 << 20


def comes_from_it(corpus: str | None) -> bool:
    """Whether a source ``format:path`` is standard input."""
    return bool(corpus) and sources.parse(str(corpus)).path == STDIN


def say_kept(run: Run) -> bool:
    """For `Stage.complete`: a finished run needs no more work; say so plainly if nobody can know whether its input came again."""
    if comes_from_it(run.config.corpus):
        say(f"{run.stage}: standard input is not read again, nor compared with what was read: what was made stands")
    return True


@contextlib.contextmanager
def readable_twice(corpus: str, folder: Path) -> Iterator[str]:
    """Yield the corpus as it is, or, if it comes from standard input, its copy in `folder`.

    After a kill or a stop the copy stays, and a restart reads it. Bad input ends it: `folder` is removed with all that was
    made of it, so that standard input, put right, is read anew.

    Raises:
        InputError: standard input is closed. What is raised within names standard input, not the copy.
    """
    if not comes_from_it(corpus):
        yield corpus
        return
    copy = folder / _COPY
    if copy.exists():
        say("prepare: going on with the standard input of the first start, which was kept; this one is not read")
    else:
        _keep(copy)
    try:
        yield f"{sources.parse(corpus).format}:{copy}"
    except InputError as error:
        shutil.rmtree(folder)
        raise InputError(str(error).replace(str(copy), shown(STDIN))) from None


def _keep(copy: Path) -> None:
    if sys.stdin is None:
        raise InputError("standard input is closed; expected text there, or the name of a file instead of '-'")
    try:
        with artifacts.new_file(copy) as temporary, open(temporary, "wb") as stream:
            while block := sys.stdin.buffer.read(_CHUNK):
                signals.check("nothing is kept yet")
                stream.write(block)
    except OSError as error:
        raise InputError(f"standard input cannot be kept in {copy.parent}: {error.strerror or error}") from None
