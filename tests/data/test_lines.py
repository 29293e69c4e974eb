import gzip
import subprocess
import sys

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BLANK, BadRows, open_text

CONTENT = "one\r\ntwo \t\n\n  \nlone\rreturn\nüñ\n字 last".encode()
LINES = [(1, "one"), (2, "two \t"), (5, "lone\rreturn"), (6, "üñ"), (7, "字 last")]


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


PACKERS = {
    "plain": lambda b: b,
    "bom": lambda b: b"\xef\xbb\xbf" + b,
    "gz": gzip.compress,
    "gz members": lambda b: gzip.compress(b[:9]) + gzip.compress(b[9:]),
    "zst": zstd,
    "zst frames": lambda b: zstd(b[:9]) + zstd(b[9:]),
    "bom gz": lambda b: gzip.compress(b"\xef\xbb\xbf" + b),
}


@pytest.mark.parametrize("packer", PACKERS)
def test_every_packing_gives_the_same_lines(tmp_path, packer):
    path = tmp_path / "any.name"
    path.write_bytes(PACKERS[packer](CONTENT))
    bad = BadRows()
    assert list(open_text(str(path), bad)) == LINES
    assert bad.counts == {BLANK: 2}
    assert list(open_text(str(path), bad)) == LINES
    assert bad.counts == {BLANK: 2}, "reading again must not count again"


@pytest.mark.parametrize("packer", ["bom", "zst"])
def test_standard_input(tmp_path, packer):
    code = "from denseir_jax.data.lines import open_text; print(list(open_text('-')))"
    done = subprocess.run([sys.executable, "-c", code], input=PACKERS[packer](CONTENT), capture_output=True, check=True)
    assert done.stdout.decode().strip() == str(LINES)


@given(st.lists(st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), max_size=5), max_size=6), st.integers(1, 7))
def test_lines_do_not_depend_on_the_size_of_reads(lines, size):
    from denseir_jax.data import lines as module

    content = "\n".join(lines).encode()
    chunks = (content[i : i + size] for i in range(0, len(content), size))
    expected = [line.removesuffix("\r") for line in content.decode().split("\n")]
    while expected and not expected[-1]:  # what follows the last line end is no line, blank lines at the end count for nothing
        expected.pop()
    found = [line.decode() for line in module._split(chunks)]
    while found and not found[-1]:
        found.pop()
    assert found == expected


def test_not_utf8(tmp_path):
    path = tmp_path / "latin"
    path.write_bytes(b"good\ncaf\xe9\nmore\n")
    with pytest.raises(InputError, match=r"latin:2: not UTF-8 \(byte 0xe9 at column 4\); expected"):
        list(open_text(str(path)))
    bad = BadRows("skip")
    assert list(open_text(str(path), bad)) == [(1, "good"), (3, "more")]
    assert bad.counts == {"not UTF-8": 1}


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_cut_file_is_refused(tmp_path, pack):
    path = tmp_path / "cut"
    path.write_bytes(pack(bytes(range(65, 91)) * 1000)[:-6])
    with pytest.raises(InputError, match=r"cut is damaged: .*expected a whole"):
        list(open_text(str(path)))


def test_missing_and_folder(tmp_path):
    with pytest.raises(InputError, match="nothing does not exist"):
        list(open_text(str(tmp_path / "nothing")))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        list(open_text(str(tmp_path)))


def test_messages_are_one_line(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(InputError) as caught:
        BadRows().bad(str(path), 3, "no id", "; expected\none")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}:3: no id")
