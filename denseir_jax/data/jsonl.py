"""Readers of JSON lines: one object a line, with an id, a text, perhaps a title."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from denseir_jax.data.lines import BadRows, open_text
from denseir_jax.data.records import Passage, Query, SeenIds, fault_of_id

_ID_KEYS = ("_id", "id", "docid")
_TEXT_KEYS = ("text", "contents")


class BadField(Exception):
    """A field of one object that cannot be used: what is counted (`reason`) and the rest of the sentence (`detail`)."""

    def __init__(self, reason: str, detail: str = ""):
        self.reason, self.detail = reason, detail
        super().__init__(reason + detail)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object that has every key once: of two equal ones a parser keeps the last, silently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:i]))
        raise BadField("key twice", f": {twice!r} in one object; expected every key once")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def objects(path: str, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object); a line that holds anything else, or a key twice, is a bad row.

    Raises:
        InputError: as `lines.open_text`, or a bad row under the policy "error".
    """
    for line, text in open_text(path, bad):
        try:
            value = _DECODER.decode(text)
            if "\\u" in text:  # only an escape can bring half a character pair, which no file or tokenizer takes
                json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            bad.bad(path, line, "half a surrogate pair", "; expected whole characters")
        except BadField as fault:
            bad.bad(path, line, fault.reason, fault.detail)
        except (ValueError, RecursionError) as error:
            bad.bad(path, line, "not JSON", f" ({error}); expected one object a line")
        else:
            if isinstance(value, dict):
                yield line, value
            else:
                bad.bad(path, line, "not an object", f" but {kind(value)}; expected one object a line")


def passages(path: str, bad: BadRows) -> Iterator[Passage]:
    """Yield passages from objects with ``_id`` (or ``id``, ``docid``), ``text`` (or ``contents``) and perhaps ``title``.

    If the first object has no id, none may have one, and a passage's id is its line number counted from 0.

    Raises:
        InputError: as `objects`.
    """
    seen, numbered = SeenIds(), None
    for line, row in objects(path, bad):
        has_id = first_key(row, _ID_KEYS) is not None
        numbered = not has_id if numbered is None else numbered
        try:
            if numbered and has_id:
                raise BadField("id where earlier rows have none", "; expected an id in every row or in none")
            passage = Passage(str(line - 1) if numbered else id_of(row), text_of(row, _TEXT_KEYS), title_of(row))
            if seen.again(passage.id):
                raise BadField("duplicate id", f" {passage.id!r}; expected every id once")
        except BadField as fault:
            bad.bad(path, line, fault.reason, fault.detail)
        else:
            yield passage


def queries(path: str, bad: BadRows) -> Iterator[Query]:
    """Yield queries from objects with ``_id`` (or ``id``) and ``text``.

    Raises:
        InputError: as `objects`.
    """
    seen = SeenIds()
    for line, row in objects(path, bad):
        try:
            query = Query(id_of(row), text_of(row, ("text",)))
            if not query.text.strip():
                raise BadField("empty query", "; expected text")
            if seen.again(query.id):
                raise BadField("duplicate id", f" {query.id!r}; expected every id once")
        except BadField as fault:
            bad.bad(path, line, fault.reason, fault.detail)
        else:
            yield query


def first_key(row: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """The first of `keys` that the object has."""
    return next((key for key in keys if key in row), None)


def id_of(row: Mapping[str, Any], keys: tuple[str, ...] = _ID_KEYS) -> str:
    """The id under the first of `keys`.

    Raises:
        BadField: it is missing, not a string, or no usable id.
    """
    key = first_key(row, keys)
    if key is None:
        raise BadField("no id", f"; expected a string under {' or '.join(keys)}")
    value = row[key]
    if not isinstance(value, str):
        hint = f' (write it as "{value}")' if isinstance(value, int) and not isinstance(value, bool) else ""
        raise BadField("id is not a string", f": {key} is {kind(value)}; expected a string{hint}")
    fault = fault_of_id(value)
    if fault:
        raise BadField(fault, f" {value!r}; expected an id of one or more characters, none of them whitespace")
    return value


def text_of(row: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The text under the first of `keys`; it may be empty.

    Raises:
        BadField: it is missing or not a string.
    """
    key = first_key(row, keys)
    if key is None:
        raise BadField("no text", f"; expected a string under {' or '.join(keys)}")
    if not isinstance(row[key], str):
        raise BadField("text is not a string", f": {key} is {kind(row[key])}; expected a string")
    return str(row[key])


def title_of(row: Mapping[str, Any]) -> str:
    """The title; missing and null are no title.

    Raises:
        BadField: it is something else than a string.
    """
    value = row.get("title")
    if value is not None and not isinstance(value, str):
        raise BadField("title is not a string", f" but {kind(value)}; expected a string or null")
    return value or ""


def kind(value: Any) -> str:
    """A JSON value's type in a reader's words."""
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object", str: "a string"}
    return names.get(type(value), "null")
