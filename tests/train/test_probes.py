"""Probes against plain loops: ranks with ties, cosine spread, packing."""

import numpy as np

from denseir_jax.analyses.spread import cosine_spread
from denseir_jax.data.tokenizer import SpecialIds
from denseir_jax.train import probes


def test_best_rank_counts_ties_against_the_answer():
    scores = np.array([[3.0, 2.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 5.0, 4.0, 3.0]], np.float32)
    ranks = probes.best_ranks(scores, [np.array([1]), np.array([0]), np.array([0, 3])])
    assert ranks.tolist() == [3, 4, 3]  # 2 above or level; all level; the better of two answers stands third


def test_cosine_spread_is_over_all_pairs_of_different_rows():
    vectors = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(7) for j in range(i)]
    np.testing.assert_allclose(cosine_spread(vectors), (np.mean(pairs), np.std(pairs)), rtol=1e-5)
    np.testing.assert_allclose(cosine_spread(np.ones((3, 4), np.float32)), (1.0, 0.0), atol=1e-6)


def test_texts_are_framed_cut_and_padded():
    packed = probes.Texts.pack(
        [np.array([7, 8]), np.zeros(0, np.int32), np.arange(10, 20)], SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4), 5
    )
    assert packed.ids.tolist() == [[2, 7, 8, 3, 0], [2, 3, 0, 0, 0], [2, 10, 11, 12, 3]]
    assert packed.length.tolist() == [4, 2, 5]
