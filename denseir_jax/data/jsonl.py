"""Readers of JSON lines: one object a line, with an id, a text, perhaps a title."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from denseir_jax.data.lines import BadRows, open_text
from denseir_jax.data.records import Passage, Query, SeenIds, fault_of_id

T = TypeVar("T")
_ID_KEYS = ("_id", "id", "docid")
_TEXT_KEYS = ("text", "contents", "document_text")


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


DECODER = json.JSONDecoder(object_pairs_hook=_object)


def objects(path: str, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object); a line that holds anything else, or a key twice, is a bad row.

    Raises:
        InputError: as `lines.open_text`, or a bad row under the policy "error".
    """
    for line, text in open_text(path, bad):
        try:
            value = DECODER.decode(text)
            need_whole(value, text)
        except BadField as fault:
            bad.bad(path, line, fault.reason, fault.detail)
        except (ValueError, RecursionError) as error:
            bad.bad(path, line, "not JSON", f" ({error}); expected one object a line")
        else:
            if isinstance(value, dict):
                yield line, value
            else:
                bad.bad(path, line, "not an object", f" but {kind(value)}; expected one object a line")


def parsed(
    objects: Iterable[tuple[int, dict[str, Any]]], path: str, bad: BadRows, parse: Callable[[Mapping[str, Any]], T]
) -> Iterator[tuple[int, T]]:
    """Yield (line number, what `parse` makes of the object); one that it raises `BadField` for is a bad row."""
    for line, value in objects:
        try:
            row = parse(value)
        except BadField as fault:
            bad.bad(path, line, fault.reason, fault.detail)
        else:
            yield line, row


def passages(path: str, bad: BadRows) -> Iterator[Passage]:
    """Yield passages from objects with ``_id`` (or ``id``, ``docid``), ``text`` (or ``contents``, ``document_text``) and perhaps ``title``.

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


def list_of(row: Mapping[str, Any], key: str, item: type, items: str) -> list[Any]:
    """The list under a key; missing and null are an empty one.

    Args:
        item: the type of what it must hold. items: the same in words ("strings").
    Raises:
        BadField: something else than a list is there, or the list holds something else.
    """
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        hint = f': write "{key}": ["..."], even for one' if isinstance(value, str) and item is str else ""
        raise BadField(f"{key} is not a list", f" but {kind(value)}; expected a list of {items}{hint}")
    other = next((found for found in value if not isinstance(found, item)), row)
    if other is not row:
        raise BadField(f"{key} holds something else", f": {kind(other)}; expected a list of {items}")
    return value


def numbers_of(row: Mapping[str, Any], key: str) -> list[float]:
    """The list of finite numbers under a key; missing and null are an empty one.

    Raises:
        BadField: something else than a list is there, or the list holds something else.
    """
    values = list_of(row, key, object, "numbers")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in values):
        raise BadField(f"{key} holds something else", "; expected finite numbers")
    return [float(value) for value in values]


def need_whole(value: Any, text: str) -> None:
    """Refuse half a character pair in the value of a JSON text: only an escape can bring one, which no file or tokenizer takes.

    Raises:
        BadField: there is one.
    """
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise BadField("half a surrogate pair", "; expected whole characters") from None


def kind(value: Any) -> str:
    """A JSON value's type in a reader's words."""
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object", str: "a string"}
    return names.get(type(value), "null")
