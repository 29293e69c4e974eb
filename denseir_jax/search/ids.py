"""Document ids on disk, one JSON string a line."""

import json
from collections.abc import Sequence
from pathlib import Path

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError


def write_ids(path: Path, ids: Sequence[str]) -> None:
    """One JSON string a line: an id may hold any character, line ends too."""
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in ids)


def read_ids(path: Path) -> list[str]:
    """What `write_ids` wrote.

    Raises:
        InputError: the file is missing, or not such a list.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as stream:
            ids = [json.loads(line) for line in stream]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a list of ids, one JSON string a line: {error}") from None
    other = next((line for line, item in enumerate(ids, start=1) if not isinstance(item, str)), None)
    if other is not None:
        raise InputError(f"{path}:{other}: not an id; expected one JSON string a line")
    return ids
