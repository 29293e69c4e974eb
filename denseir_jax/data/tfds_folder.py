"""The reader of data sets that TensorFlow Datasets has prepared, without TensorFlow: through its data source, from ArrayRecord files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage, SeenIds, fault_of_id

_ID_KEYS, _TEXT_KEYS = ("id", "_id", "docid", "passage_id", "pid"), ("text", "contents", "document_text", "passage", "article", "context")


def passages(path: str, bad: BadRows) -> Iterator[Passage]:
    """Yield the passages of all splits of a folder NAME/[CONFIG/]VERSION: fields ``id``, ``title``, ``text`` or the like.

    Without an id field, a passage's id is its number from 0 over all splits. Rows in messages are numbered from 1 in their split.

    Raises:
        InputError: no prepared data set is there; one in another file format; no field of text; under the policy "error" a row
            whose id is bad or comes twice, or whose text is not UTF-8.
    """
    builder = _builder(path)
    seen, number = SeenIds(), 0
    bad.begin(path)
    for split in sorted(builder.info.splits):
        source = _source(builder, split, path)
        for n in range(len(source)):
            row = source[n]
            keys = _keys(row, path)
            try:
                id, text, title = (_text(row[key]) if key else "" for key in keys)
            except UnicodeDecodeError:
                bad.bad(f"{path} {split}", n + 1, "not UTF-8", "; expected text in UTF-8")
                continue
            id, number = id if keys[0] else str(number), number + 1
            fault = fault_of_id(id) or ("duplicate id" if seen.again(id) else "")
            if fault:
                bad.bad(f"{path} {split}", n + 1, fault, f" {id!r}; expected one without whitespace, every one once")
            else:
                yield Passage(id, text, title)


def _builder(path: str) -> Any:
    import tensorflow_datasets as tfds  # seconds to import, which other sources need not wait for

    if not (Path(path) / "dataset_info.json").is_file():
        raise InputError(f"{path} holds no dataset_info.json; expected a prepared folder NAME/VERSION or NAME/CONFIG/VERSION")
    try:
        return tfds.builder_from_directory(path)
    except Exception as error:  # whatever tfds meets in a damaged folder
        raise InputError(f"{path} cannot be read as a TensorFlow data set: {error}") from None


def _source(builder: Any, split: str, path: str) -> Any:
    try:
        return builder.as_data_source(split=split)
    except Exception as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{path}: {split} cannot be read ({line}); expected ArrayRecord files: tfds build NAME --file_format=array_record"
        ) from None


def _keys(row: Mapping[str, Any], path: str) -> tuple[str, str, str]:
    """Names of the fields of id, text and title; "" for one that is not there."""
    id, text = (next((key for key in keys if key in row), "") for keys in (_ID_KEYS, _TEXT_KEYS))
    if not text:
        raise InputError(f"{path} has the fields {', '.join(sorted(row))}; expected a text under {' or '.join(_TEXT_KEYS)}")
    return id, text, "title" if "title" in row else ""


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
