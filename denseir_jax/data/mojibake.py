"""Signs that a text was decoded wrongly before it came here: characters lost, or UTF-8 read as Latin-1 or Windows-1252."""

import re

REPLACEMENT = "\ufffd"


def _readings(first: int, last: int, without: str = "") -> str:
    """A character class of all that bytes `first` to `last` look like in Latin-1 and in Windows-1252."""
    found = {chr(byte) for byte in range(first, last + 1)}
    found |= {bytes([byte]).decode("cp1252", "ignore") for byte in range(first, last + 1)}
    return "[" + "".join(re.escape(character) for character in sorted(found) if character and character not in without) + "]"


# A letter that UTF-8 writes in two to four bytes, seen as that many characters. The first is a lead byte's reading, the rest are
# readings of 0x80 to 0xBF. Closing punctuation after a capital is also honest text, so it does not count after the lead alone;
# and of scripts other than Latin two letters in a row are wanted.
_NEXT = _readings(0x80, 0xBF)
_MOJIBAKE = re.compile(
    "|".join(
        (
            "\u00c3" + _readings(0x80, 0xBF, without="\u201d\u2019\u203a\u2026"),
            "\u00c2[\u0080-\u00bf]",
            "\u00e2" + "[\u20ac\u201a\u201e\u2020\u02c6\u0080\u0082\u0084\u0086\u0088]" + _NEXT,
            "\u00ef\u00bb\u00bf",  # a byte order mark
            "\u00f0[\u0178\u009f]" + _NEXT + "{2}",
            f"(?:[\u00ce-\u00d1]{_NEXT}|[\u00e0-\u00ef]{_NEXT}{{2}}){{2}}",
            "[\u0080-\u0084\u0086-\u009f]",  # control characters that no text has: Windows-1252 read as Latin-1
        )
    )
)


def mojibake(text: str) -> str:
    """The first sequence in `text` that looks like UTF-8 read as Latin-1 or Windows-1252, or ""."""
    if text.isascii():
        return ""
    found = _MOJIBAKE.search(text)
    return found.group() if found else ""
