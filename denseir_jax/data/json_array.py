"""JSON objects from a file that is one array, read object by object: such a file may be larger than memory."""

import codecs
import json
from collections.abc import Iterator
from typing import Any

from denseir_jax.core.errors import InputError
from denseir_jax.data import jsonl
from denseir_jax.data.jsonl import BadField
from denseir_jax.data.lines import STDIN, BadRows, chunks, shown

_LONGEST = 1 << 26  # characters of one object: what is longer has a bracket or a quote too few


def objects(path: str, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of a file that holds one array of objects, or one object a line.

    Raises:
        InputError: the file cannot be read or is no such array; or a bad row under the policy "error".
    """
    first = "" if path == STDIN else next((text.lstrip()[:1] for text in _decoded(path) if text.strip()), "")
    yield from _array(path, bad) if first == "[" else jsonl.objects(path, bad)


def _decoded(path: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        for chunk in chunks(path):
            yield decoder.decode(chunk)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InputError(f"{shown(path)} is not UTF-8 ({error.reason}); expected text in UTF-8") from None


class _Text:
    """A window on a text that is read on when needed."""

    def __init__(self, path: str):
        self.path, self._parts, self._ended = path, _decoded(path), False
        self.text, self.at, self.line = "", 0, 1

    def more(self) -> bool:
        """Drop what is behind, double what is ahead; False at the end of the file."""
        parts = [self.text[self.at :]]
        wanted = max(len(parts[0]), 1)
        while wanted > 0 and not self._ended:
            part = next(self._parts, None)
            self._ended = part is None
            parts.append(part or "")
            wanted -= len(part or "")
        grew = any(parts[1:])
        self.text, self.at = "".join(parts), 0
        return grew

    def to(self, end: int) -> None:
        """Go on to a place further on."""
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def next_sign(self) -> str:
        """The next character that is no space, not yet taken; "" at the end of the file."""
        while True:
            rest = self.text[self.at : self.at + 4096]
            blank = len(rest) - len(rest.lstrip())
            self.to(self.at + blank)
            if blank < len(rest):
                return self.text[self.at]
            if not rest and not self.more():
                return ""

    def take(self, expected: str) -> str:
        """Take the next character that is no space.

        Raises:
            InputError: it is none of `expected`.
        """
        sign = self.next_sign()
        if not sign or sign not in expected:
            found = repr(sign) if sign else "the end of the file"
            raise InputError(f"{shown(self.path)}:{self.line}: not JSON: {found}; expected {' or '.join(expected)}")
        self.to(self.at + 1)
        return sign

    def value(self) -> Any:
        """Take one value.

        Raises:
            InputError: there is none. BadField: it holds a key twice or half a character pair; the place is behind it.
        """
        fault: Exception
        while True:
            try:
                value, end = jsonl.DECODER.raw_decode(self.text, self.at)
                jsonl.need_whole(value, self.text[self.at : end])
            except BadField:
                try:  # where it ends, which the strict decoder does not say
                    _, end = json.JSONDecoder().raw_decode(self.text, self.at)
                except (ValueError, RecursionError) as error:
                    fault = error
                else:
                    self.to(end)
                    raise
            except (ValueError, RecursionError) as error:
                fault = error
            else:
                self.to(end)
                return value
            if len(self.text) - self.at > _LONGEST or not self.more():
                raise InputError(f"{shown(self.path)}:{self.line}: not JSON ({fault}); expected an object that begins here")


def _array(path: str, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    bad.begin(path)
    text = _Text(path)
    text.take("[")
    empty = text.next_sign() == "]"
    while not empty:
        text.next_sign()
        line = text.line
        try:
            value = text.value()
            if not isinstance(value, dict):
                raise BadField("not an object", f" but {jsonl.kind(value)}; expected an array of objects")
        except BadField as fault:
            bad.bad(path, line, fault.reason, fault.detail)
        else:
            yield line, value
        if text.take(",]") == "]":
            break
    else:
        text.take("]")
    if text.next_sign():
        raise InputError(f"{shown(path)}:{text.line}: more after the array; expected one array")
