"""Lines of text from any file: plain, gzip or zstandard, a path or standard input. And what to do with a bad one."""

import gzip
import io
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import zstandard

from denseir_jax.core.errors import InputError

STDIN = "-"
BLANK = "blank line"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # neither can begin a UTF-8 text, so content decides, not the name
_CHUNK = 1 << 20


class BadRows:
    """What happens to rows that cannot be used: refuse the file at the first, or skip and count them by reason.

    Counts are kept by file and begin anew when a file is read again, so a second pass does not count twice.

    Attributes:
        place: (path, line) that was read last, or None where no lines are read: where the row in hand came from.
    """

    def __init__(self, policy: Literal["error", "skip"] = "error"):
        self.policy = policy
        self.place: tuple[str, int] | None = None
        self._files: dict[str, Counter[str]] = {}

    def begin(self, path: str) -> None:
        """`path` is read from its first line on."""
        self._files[path] = Counter()

    def bad(self, path: str, line: int, reason: str, detail: str = "") -> None:
        """Refuse or count one row. `reason` is what is counted; `detail` goes on: what was found, what was expected.

        Raises:
            InputError: under the policy "error": ``path:line: reason detail``.
        """
        if self.policy == "error":
            raise InputError(f"{shown(path)}:{line}: {reason}{detail}")
        self.count(path, reason)

    def count(self, path: str, reason: str) -> None:
        """Note something that is no fault under either policy, such as a blank line."""
        self._files.setdefault(path, Counter())[reason] += 1

    @property
    def counts(self) -> dict[str, int]:
        """Reason -> rows, over all files read."""
        total: Counter[str] = Counter()
        for counter in self._files.values():
            total.update(counter)
        return dict(sorted(total.items()))


def shown(path: str) -> str:
    """A path as messages name it."""
    return "standard input" if path == STDIN else path


def open_text(path: str, bad: BadRows | None = None) -> Iterator[tuple[int, str]]:
    r"""Yield (line number from 1, text without its line end) of a UTF-8 file, in constant memory.

    Ends of lines are ``\n`` and ``\r\n``; a lone ``\r`` inside a line is data. A byte order mark is dropped. Blank lines
    are skipped and counted.

    Args:
        path: a file, or "-" for standard input. gzip and zstandard are recognised by their first bytes.
        bad: what to do with a line that is not UTF-8; refuse the file if not given.
    Raises:
        InputError: the file cannot be read, is damaged, or holds a line that is not UTF-8.
    """
    bad = bad or BadRows()
    bad.begin(path)
    for number, raw in enumerate(_split(chunks(path)), start=1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            bad.bad(path, number, "not UTF-8", f" (byte 0x{raw[error.start]:02x} at column {error.start + 1}); expected text in UTF-8")
            continue
        if text.isspace() or not text:
            bad.count(path, BLANK)
            continue
        bad.place = (path, number)
        yield number, text


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []  # of a line that goes on in the next chunk
    for chunk in chunks:
        head, *rest = chunk.split(b"\n")
        parts.append(head)
        if rest:
            yield b"".join(parts).removesuffix(b"\r")
            yield from (line.removesuffix(b"\r") for line in rest[:-1])
            parts = [rest[-1]]
    last = b"".join(parts)
    if last:
        yield last.removesuffix(b"\r")


def chunks(path: str) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked.

    Raises:
        InputError: the file cannot be read or is damaged.
    """
    try:
        with _opened(path) as stream:
            start = stream.peek(4)[:4]
            if start.startswith(_GZIP):
                with gzip.GzipFile(fileobj=stream) as unpacked:
                    yield from iter(lambda: unpacked.read(_CHUNK), b"")
            elif start == _ZSTD:
                yield from _zstd_chunks(stream)
            else:
                yield from iter(lambda: stream.read(_CHUNK), b"")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise InputError(f"{shown(path)} is damaged: {error}; expected a whole compressed file") from None
    except OSError as error:
        raise InputError(f"{shown(path)} cannot be read: {error.strerror or error}") from None


def _opened(path: str) -> io.BufferedReader:
    if path == STDIN:  # a second handle on the same descriptor: closing it leaves sys.stdin open
        if sys.stdin is None:
            raise InputError("standard input is closed; expected text there, or the name of a file instead of '-'")
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return open(path, "rb")


def _zstd_chunks(stream: io.BufferedReader) -> Iterator[bytes]:
    """Frames one after the other. The library's own reader takes a file cut within a frame for a whole one."""
    data = stream.read(_CHUNK)
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        while not frame.eof:
            if not data:
                raise EOFError("the last frame is cut off")
            yield frame.decompress(data)
            data = frame.unused_data if frame.eof else stream.read(_CHUNK)
        data = data or stream.read(_CHUNK)
