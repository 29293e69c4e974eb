import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from denseir_jax.data.pieces import SplitRule, pack_sentences

LENGTHS = st.lists(st.integers(1, 60), max_size=40)


def check_partition(lengths, pieces):
    """Whole sentences, in order, none lost: each piece begins where the one before ends (PRETRAINING T25)."""
    assert [index for first, last in pieces for index in range(first, last)] == list(range(len(lengths)))
    assert all(first < last for first, last in pieces)


def test_a_block_is_closed_before_the_sentence_that_would_overflow():
    assert pack_sentences([5, 5, 1, 9, 12, 3], 10, 0.0, 0, 0) == [(0, 2), (2, 4), (4, 5), (5, 6)]


@given(LENGTHS, st.integers(1, 80))
def test_blocks_that_overshoot_do_so_by_less_than_a_sentence(lengths, target):
    """T25: RetroMAE closes a block after the sentence that fills it."""
    pieces = pack_sentences(lengths, target, 0.0, 0, 0, overshoot=True)
    check_partition(lengths, pieces)
    assert all(sum(lengths[a:b]) >= target > sum(lengths[a : b - 1]) for a, b in pieces[:-1])
    assert pack_sentences([5, 5, 1, 9, 12, 3], 10, 0.0, 0, 0, overshoot=True) == [(0, 2), (2, 4), (4, 5), (5, 6)]
    assert pack_sentences([4, 5, 3, 9], 10, 0.0, 0, 0, overshoot=True) == [(0, 3), (3, 4)]


def test_spans_by_hand():
    # 6 is below the minimum, so 9 joins it beyond the target; the tail of 2 joins the last span.
    assert pack_sentences([6, 9, 5, 4, 2], 10, 0.0, 0, 0, minimum=8) == [(0, 2), (2, 5)]
    assert pack_sentences([3], 10, 0.0, 0, 0, minimum=8) == [(0, 1)]


@given(LENGTHS, st.integers(1, 80), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 9), st.integers(0, 9))
def test_blocks_never_overflow_but_by_one_long_sentence(lengths, target, share, seed, row):
    pieces = pack_sentences(lengths, target, share, seed, row)
    check_partition(lengths, pieces)
    assert all(sum(lengths[a:b]) <= target or b - a == 1 for a, b in pieces)
    if share == 0.0:  # greedy: the next block's first sentence did not fit
        assert all(sum(lengths[a : b + 1]) > target for a, b in pieces[:-1])


@given(LENGTHS, st.integers(10, 80), st.integers(1, 10), st.sampled_from([0.0, 0.1, 1.0]))
def test_spans_hold_the_minimum_unless_the_document_does_not(lengths, target, minimum, share):
    pieces = pack_sentences(lengths, target, share, 3, 1, minimum)
    check_partition(lengths, pieces)
    totals = [sum(lengths[a:b]) for a, b in pieces]
    assert all(total >= minimum for total in totals) or len(pieces) == 1
    # Beyond the target only by a long sentence, or by what was below the minimum before or after.
    longest = max(lengths, default=0)
    assert all(total <= max(target, longest) + 2 * (minimum - 1) for total in totals)


def test_short_targets_are_uniform_and_as_frequent_as_asked():
    lengths = [1] * 4000
    sizes = np.array([b - a for a, b in pack_sentences(lengths, 20, 0.1, 7, 0)][:-1])
    all_short = np.array([b - a for row in range(20) for a, b in pack_sentences(lengths, 20, 1.0, 7, row)[:-1]])
    assert abs((sizes < 20).mean() - 0.1 * 19 / 20) < 0.06
    counts = np.bincount(all_short, minlength=21)[1:]
    assert counts.min() > 0 and np.abs(counts / counts.mean() - 1).max() < 0.15


def test_the_draw_depends_on_seed_and_document_alone():
    lengths = [3] * 200
    assert pack_sentences(lengths, 30, 0.5, 1, 5) == pack_sentences(lengths, 30, 0.5, 1, 5)
    assert pack_sentences(lengths, 30, 0.5, 1, 5) != pack_sentences(lengths, 30, 0.5, 2, 5)
    assert pack_sentences(lengths, 30, 0.5, 1, 5) != pack_sentences(lengths, 30, 0.5, 1, 6)
    # What comes later in a document changes nothing before it.
    assert (
        pack_sentences(lengths[:100], 30, 0.5, 1, 5)[:-1]
        == pack_sentences(lengths, 30, 0.5, 1, 5)[: len(pack_sentences(lengths[:100], 30, 0.5, 1, 5)) - 1]
    )


def test_none_keeps_a_document_whole_even_if_empty():
    assert SplitRule("none").cut([4, 5], 0) == [(0, 2)]
    assert SplitRule("none").cut([], 0) == [(0, 0)]
    assert SplitRule("blocks", 10).cut([], 0) == []
