"""Processes that write the parts of `prepare`."""

import functools
import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from denseir_jax.core import signals
from denseir_jax.data.pieces import SplitRule
from denseir_jax.data.token_parts import Chunk, write_part
from denseir_jax.data.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Task:
    """One part to write: where, of which documents, with the tokenizer in which folder, cut by which rule."""

    path: Path
    chunk: Chunk
    tokenizer: Path
    rule: SplitRule


def write_parts(tasks: Iterator[Task], workers: int) -> Iterator[int]:
    """Write all parts; yield the number of documents of each, in order, once it is on disk.

    Args:
        tasks: drawn from as processes get free, so only a few chunks are in memory. workers: 1 works in this process, and
        so does a corpus of one part: it would be done before another process had started.
    Raises:
        whatever `tasks` raises, after the parts in hand are written. RuntimeError: a process was killed from outside.
    """
    first = list(itertools.islice(tasks, 2))
    if workers == 1 or len(first) < 2:
        yield from map(_work, itertools.chain(first, tasks))
        return
    # Not forked: this process may have threads already, whose locks a fork would copy in whatever state they are.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
        waiting: deque[Future[int]] = deque()
        try:
            for task in itertools.chain(first, tasks):
                waiting.append(pool.submit(_work, task))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            signals.check()
            raise RuntimeError("a worker process was killed, perhaps for want of memory; fewer workers or a smaller chunk help") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _work(task: Task) -> int:
    write_part(task.path, task.chunk, _loaded(task.tokenizer), task.rule)
    return len(task.chunk.ids)


@functools.cache
def _loaded(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def _begin() -> None:
    """Set up a worker: one thread, Ctrl-C left to the parent, and an end with the parent, however that ends."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # a worker is always started by another process
    connection.wait([parent.sentinel])
    os._exit(1)
