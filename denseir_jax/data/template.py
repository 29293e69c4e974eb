"""How a query or a passage becomes the text that is encoded. Kept with every checkpoint and enforced wherever it is used."""

from dataclasses import dataclass

from denseir_jax.data.records import Passage


@dataclass(frozen=True)
class TextTemplate:
    """Prefixes, title and lengths.

    Attributes:
        query_prefix, passage_prefix: put before every text, with their own trailing space if one is wanted.
        use_title: whether a passage's title is part of its text. title_join: what stands between title and text.
        query_length, passage_length: most tokens, [CLS] and [SEP] included.
    """

    query_prefix: str = ""
    passage_prefix: str = ""
    title_join: str = " "
    use_title: bool = True
    query_length: int = 32
    passage_length: int = 128

    def __post_init__(self) -> None:
        for name in ("query_length", "passage_length"):
            if not 3 <= getattr(self, name) <= 1 << 20:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 3 ([CLS], one token, [SEP]) to {1 << 20}")

    def passage(self, passage: Passage) -> str:
        """The text of a passage: prefix, then title (if used and there is one) and text joined."""
        parts = (passage.title if self.use_title else "", passage.text)
        return self.passage_prefix + self.title_join.join(part for part in parts if part)

    def query(self, text: str) -> str:
        """The text of a query."""
        return self.query_prefix + text
