"""Keyed dropout: a row's bits depend on its key and the site alone, the rate is right, the expectation stays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from denseir_jax.models.dropout import LEVELS, keyed_dropout


def keys(*numbers):
    return jax.vmap(lambda n: jax.random.fold_in(jax.random.key(3), n))(jnp.array(numbers))


def test_without_keys_or_rate_it_is_the_identity():
    x = jnp.arange(12.0).reshape(2, 6)
    assert keyed_dropout(x, 0.5, None, 1) is x
    assert keyed_dropout(x, 0.0, keys(0, 1), 1) is x


@pytest.mark.parametrize("shape", [(8,), (2, 3, 9)])
def test_a_row_is_the_same_in_any_batch(shape):
    x = jnp.ones((4, *shape))
    whole = keyed_dropout(x, 0.4, keys(0, 1, 2, 3), 5)
    turned = keyed_dropout(x, 0.4, keys(3, 2, 1, 0), 5)[::-1]
    alone = jnp.concatenate([keyed_dropout(x[:1], 0.4, keys(n), 5) for n in range(4)])
    scanned = jax.lax.map(lambda row: keyed_dropout(row[0], 0.4, row[1], 5), (x.reshape(2, 2, *shape), keys(0, 1, 2, 3).reshape(2, 2)))
    for other in (turned, alone, scanned.reshape(x.shape)):
        np.testing.assert_array_equal(whole, other)
    assert not np.array_equal(whole[0], whole[1])


def test_sites_and_traced_sites():
    x = jnp.ones((1, 64))
    one, two = (np.asarray(keyed_dropout(x, 0.5, keys(0), site)) for site in (1, 2))
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(one, jax.jit(lambda site: keyed_dropout(x, 0.5, keys(0), site))(1))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_within_three_sigma_and_kept_values_scaled(rate):
    out = np.asarray(keyed_dropout(jnp.ones((8, 50, 101)), rate, keys(*range(8)), 0))
    dropped, n = (out == 0).mean(), out.size
    assert abs(dropped - rate) < 3 * np.sqrt(rate * (1 - rate) / n)
    np.testing.assert_allclose(out[out > 0], 1 / (1 - round(rate * LEVELS) / LEVELS), rtol=1e-6)


def test_the_two_halves_of_a_word_are_independent():
    """Elements i and i + half share a random word; their drops must not go together."""
    out = np.asarray(keyed_dropout(jnp.ones((64, 512)), 0.5, keys(*range(64)), 0)) == 0
    together = (out[:, :256] & out[:, 256:]).mean()
    assert abs(together - 0.25) < 3 * np.sqrt(0.25 * 0.75 / (64 * 256))


def test_keys_that_do_not_draw_row_by_row_are_refused():
    with pytest.raises(ValueError, match="threefry"):
        keyed_dropout(jnp.ones((2, 4)), 0.5, jax.random.split(jax.random.key(0, impl="rbg"), 2), 0)
    with pytest.raises(ValueError, match=r"1\.5"):
        keyed_dropout(jnp.ones((2, 4)), 1.5, keys(0, 1), 0)
