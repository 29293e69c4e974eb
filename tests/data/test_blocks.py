"""Passages in blocks: where they begin and end, in the store and in training rows, against plain loops."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.core.command import execute
from denseir_jax.core.config import card, identity, parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.data.facts import build
from denseir_jax.data.ragged import Ragged
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokens import TokenStore
from denseir_jax.data.training_set import GroupRows, TrainingSet
from denseir_jax.pipeline.stages import prepare

LENGTHS = (1, 3, 4, 5, 8, 9, 12, 13, 20, 30)  # words of document i, each a token


def blocks_of(tokens: list[int], room: int, step: int, most: int) -> list[list[int]]:
    """One after the other, until the text has been read to its end or there are enough."""
    found, start = [tokens[:room]], step
    while len(found) < most and start < len(tokens) and start - step + room < len(tokens):
        found.append(tokens[start : start + room])
        start += step
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=8), st.integers(1, 12), st.integers(0, 20), st.integers(1, 6))
def test_blocks_by_a_plain_loop(lengths: list[int], room: int, stride: int, most: int) -> None:
    template = TextTemplate(passage_length=room + 2, blocks=most, stride=stride if most > 1 else 0)
    texts = [list(range(100 * i, 100 * i + length)) for i, length in enumerate(lengths)]
    expected = [blocks_of(text, room, template.stride or room, most) for text in texts]
    blocks, number_of = template.cut([np.array(text, np.int32) for text in texts])
    assert [block.tolist() for block in blocks] == [block for found in expected for block in found]
    assert number_of.tolist() == [len(found) for found in expected] == template.blocks_in(np.array(lengths, np.int64)).tolist()
    starts, held = template.windows(np.array(lengths, np.int64))
    for text, found, begins, sizes in zip(texts, expected, starts.tolist(), held.tolist(), strict=True):
        assert [text[a : a + n] for a, n in zip(begins, sizes, strict=True) if n >= 0] == found
        assert sizes[len(found) :] == [-1] * (most - len(found)), "what is none comes last"
    if stride <= room:
        assert all(
            set(text[: template.reach]) == {token for block in found for token in block}
            for text, found in zip(texts, expected, strict=True)
        )


def test_one_block_is_the_template_of_before() -> None:
    """Configs, manifests and hashes of runs that were made before there were blocks stay what they are."""
    names = {"query_prefix", "passage_prefix", "title_join", "use_title", "query_length", "passage_length"}
    assert set(TextTemplate().facts) == set(identity(TextTemplate())) == names
    two = TextTemplate(blocks=2, stride=9)
    assert set(two.facts) == names | {"blocks", "stride"} and identity(two)["stride"] == 9 and identity(two)["blocks"] == 2
    for template in (TextTemplate(), two):
        assert build(TextTemplate, template.facts, Path("x")) == parse(TextTemplate, card(template)) == template


@pytest.mark.parametrize("values", [{"blocks": 0}, {"blocks": 2000}, {"stride": 8}, {"blocks": 2, "stride": -1}])
def test_impossible_blocks_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"config: (blocks|stride) is"):
        parse(TextTemplate, values)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder, rng = tmp_path_factory.mktemp("prepared"), np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghijklmnop"), length)) for length in LENGTHS]
    (folder / "c.jsonl").write_text("".join(json.dumps({"_id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    template = TextTemplate(query_length=6, passage_length=6, blocks=3)
    execute(
        prepare.stage,
        prepare.PrepareConfig(corpus=f"jsonl:{folder / 'c.jsonl'}", vocab_size=60, workers=1, template=template),
        folder / "run",
    )
    return TokenStore.open(folder / "run")


def groups(store: TokenStore, template: TextTemplate) -> GroupRows:
    n = len(LENGTHS)
    negatives = {"bm25": Ragged.of([[(i + 1) % n, (i + 3) % n] for i in range(n)])}
    found = TrainingSet([f"q{i}" for i in range(n)], ["a b"] * n, Ragged.of([[i] for i in range(n)]), negatives)
    return GroupRows(found, store, store.tokenizer(), template, group_size=3, seed=0)


@pytest.mark.parametrize("stride", [0, 3, 7])
def test_rows_hold_the_blocks_of_whole_documents_each_with_its_cls(store: TokenStore, stride: int) -> None:
    template = dataclasses.replace(store.template, stride=stride)
    rows, special = groups(store, template).rows(np.arange(20)), store.special_ids
    ids, length = rows["passage_ids"], rows["passage_length"]
    assert ids.shape == (20, 3, 3, 6) and length.shape == (20, 3, 3) and ids.dtype == length.dtype == np.int32
    for row, blocks, real in zip(rows["passage_row"].reshape(-1), ids.reshape(-1, 3, 6), length.reshape(-1, 3), strict=True):
        framed = [[special.cls, *block, special.sep] for block in blocks_of(store.document(int(row))[0].tolist(), 4, stride or 4, 3)]
        for block in (*framed, *[[]] * (3 - len(framed))):
            assert blocks[0].tolist() == block + [special.pad] * (6 - len(block)) and real[0] == len(block)
            blocks, real = blocks[1:], real[1:]
    assert (length == 0).any() and (length[..., 0] > 0).all()


def test_one_block_is_the_first(store: TokenStore) -> None:
    several, first = (groups(store, dataclasses.replace(store.template, blocks=n)).rows(np.arange(20)) for n in (3, 1))
    np.testing.assert_array_equal(first["passage_ids"], several["passage_ids"][:, :, 0])
    np.testing.assert_array_equal(first["passage_length"], several["passage_length"][:, :, 0])
    assert all(np.array_equal(first[name], several[name]) for name in set(first) - {"passage_ids", "passage_length"})


def test_the_share_cut_off_is_what_no_block_reaches(store: TokenStore) -> None:
    manifest = json.loads((store.folder / "manifest.json").read_text())
    assert manifest["template"]["blocks"] == 3 and store.template.reach == 12
    assert manifest["share_truncated"] == sum(length > 12 for length in LENGTHS) / len(LENGTHS)
