"""Encoder passes over rows of tiny_model, changed at will, and what every masked-text objective must do with them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tiny_model import CLS, PAD, SEP, params_of, quick, run

from denseir_jax.models import bert
from denseir_jax.models.embedder import Embedder
from denseir_jax.objectives.losses import mean
from denseir_jax.objectives.masked_text import Encoded, MaskedText
from denseir_jax.objectives.masking import Text

Change = Callable[[jax.Array], jax.Array]


def read(objective: MaskedText, params: Any, rows: Any, pads: int = 0) -> Encoded:
    """As the objective reads rows, without dropout; with `pads` more columns of padding under the very same masks."""
    return encode(objective, params, widened(objective.read(params, rows, None, objective.reads_layers), pads))


def encode(objective: MaskedText, params: Any, encoded: Encoded) -> Encoded:
    """The same masked texts through the encoder of these parameters."""
    layers, ids = objective.reads_layers, encoded.masked.ids
    hidden = bert.encode(objective.context.encoder, params["encoder"], ids, encoded.text.length, collect=layers)
    return encoded._replace(hidden=hidden)


def widened(found: Encoded, pads: int) -> Encoded:
    """The texts and masks with `pads` more columns; the states are those of before."""

    def wider(x: Any, value: int = 0) -> Any:
        return jnp.pad(x, ((0, 0), (0, pads)), constant_values=value)

    text = dataclasses.replace(found.text, ids=wider(found.text.ids, PAD), words=wider(found.text.words))
    return found._replace(text=text, chosen=wider(found.chosen), masked=found.masked._replace(ids=wider(found.masked.ids, PAD)))


def read_now(objective: MaskedText, params: Any, rows: Any) -> Encoded:
    """`read`, compiled: to be looked at, or to be closed over."""
    text: Text | None = None

    def arrays() -> Any:
        nonlocal text
        encoded = read(objective, params, rows)
        text = encoded.text
        return encoded[1:], {name: getattr(text, name) for name in ("ids", "length", "words", "index", "side")}

    rest, of_text = quick(arrays)()
    assert text is not None
    return Encoded(dataclasses.replace(text, **of_text), *rest)


def with_vector(encoded: Encoded, change: Change) -> Encoded:
    """The same pass with another [CLS] state."""
    last = encoded.hidden.last
    return encoded._replace(hidden=encoded.hidden._replace(last=last.at[:, 0].set(change(last[:, 0]))))


def scores(objective: MaskedText, params: Any, encoded: Encoded) -> dict[str, jax.Array]:
    """The means of all sums, by name."""
    return {name: mean(pair) for name, pair in objective.score(params, encoded)[1].items()}


def flat_head(params: Any) -> Any:
    """An MLM head whose logits are all equal."""
    norm = params["mlm_head"]["norm"]
    return params | {"mlm_head": params["mlm_head"] | {"norm": {**norm, "scale": norm["scale"] * 0}}}


def padding_changes_nothing(objective: MaskedText, rows: Any) -> None:
    """T24: more padding, the same masks: every sum is the same."""
    params = params_of(objective)
    both = [quick(lambda n=n: scores(objective, params, read(objective, params, rows, n)))() for n in (0, 5)]
    assert set(both[0]) >= set(objective.terms)
    for name, short in both[0].items():
        np.testing.assert_allclose(both[1][name], short, rtol=1e-5, err_msg=name)


def exported_tower_is_the_encoder(objective: Any, rows: Any) -> None:
    """T20: what is exported has no head and gives, for the rows that training reads, training's vectors."""
    params = params_of(objective)
    (tower,) = objective.towers(params).values()
    assert set(tower) == {"encoder"}, set(tower)
    embedder = Embedder(objective.context.encoder, objective.context.embedder)

    def exported() -> Any:
        seen = objective.read(params, rows, None, False)
        return embedder.embed(tower, seen.masked.ids, seen.text.length)

    vectors = quick(exported)()
    trained = run(objective, params, rows)[2]["cls"]
    np.testing.assert_allclose(vectors, trained.reshape(vectors.shape), rtol=1e-5, atol=1e-6)


def few_words(n: int = 8, words: int = 4) -> dict[str, jax.Array]:
    """Sentences of 16 tokens over so few words that neither a place nor the token before tells the next one."""
    ids = np.random.default_rng(1).integers(5, 5 + words, (n, 16))
    ids[:, 0], ids[:, -1] = CLS, SEP
    start = np.ones_like(ids)
    start[:, [0, -1]] = 0
    fields = {"input_ids": ids, "length": np.full(n, 16), "word_start": start, "index": np.arange(n)}
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


def entropy_given(rows: Any, places: range, known: tuple[int, ...] = ()) -> float:
    """Mean over `places` of the entropy, in nats, of a token where one knows the place and the tokens at offsets `known`:
    no predictor without the vector can cost less on these rows."""
    ids, total = np.asarray(rows["input_ids"]), 0.0
    for at in places:
        groups = [tuple(row[max(at + back, 0)] for back in known) for row in ids]
        for group in set(groups):
            tokens = [row[at] for row, mine in zip(ids, groups, strict=True) if mine == group]
            share = np.unique(tokens, return_counts=True)[1] / len(tokens)
            total -= len(tokens) / len(ids) * (share * np.log(share)).sum()
    return total / len(places)


def overfit(objective: MaskedText, rows: Any, steps: int, rate: float, *changes: Change) -> tuple[list[float], list[float]]:
    """The decoder's loss under each change of the vector, after training the sum of the terms without dropout: once with the
    vector as it is, once with zeros in its place."""
    optimizer = optax.adam(rate)
    texts = read_now(objective, params_of(objective), rows)

    def loss(params: Any, factor: Any) -> Any:
        found = scores(objective, params, with_vector(encode(objective, params, texts), lambda h: h * factor))
        return sum(weight * found[name] for name, weight in objective.terms.items())

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 2})  # it runs longer than it compiles
    def trained(params: Any, factor: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            params, moments = state
            updates, moments = optimizer.update(jax.grad(loss)(params, factor), moments)
            return (optax.apply_updates(params, updates), moments), None

        params = jax.lax.scan(step, (params, optimizer.init(params)), None, steps)[0][0]
        encoded = encode(objective, params, texts)
        vectors = jnp.stack([change(encoded.cls) for change in changes])
        return jax.lax.map(lambda h: scores(objective, params, with_vector(encoded, lambda _: h))["decoder"], vectors)

    with_it, without = (trained(params_of(objective), jnp.float32(factor)).tolist() for factor in (1, 0))
    return with_it, without
