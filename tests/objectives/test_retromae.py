"""RetroMAE's enhanced decoding and DupMAE: what each position sees, the two streams in numpy, and known losses."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_model import CLS, PAD, SEP, context, masked_rows, params_of, quick, run, same_in_parts
from tiny_passes import (
    entropy_given,
    exported_tower_is_the_encoder,
    few_words,
    flat_head,
    overfit,
    read,
    read_now,
)

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.models import bert
from denseir_jax.objectives import masking
from denseir_jax.objectives.masked_text import all_text
from denseir_jax.objectives.masking import DECODER_MASK, MaskConfig, Text
from denseir_jax.objectives.retromae import RetroMae, RetroMaeConfig, visible_to

ROWS = masked_rows(6)
DUP: dict[str, Any] = {"query_norm": True, "bow_weight": 0.1}


def retromae(ctx: Any = None, **config: Any) -> RetroMae:
    built = RetroMaeConfig(**config).build(ctx or context())
    assert isinstance(built, RetroMae)
    return built


def ten_tokens(n: int, pads: int = 2) -> Text:
    """Texts of 8 words of one piece each."""
    ids = np.random.default_rng(0).integers(5, 90, (n, 10 + pads))
    ids[:, 0], ids[:, 9], ids[:, 10:] = CLS, SEP, PAD
    starts, length = np.zeros_like(ids), np.full(n, 10)
    starts[:, 1:9] = 1
    rows = [jnp.asarray(x, jnp.int32) for x in (ids, length, starts, np.arange(n))]
    return Text.of(rows[0], rows[1], rows[2], rows[3], (CLS, SEP, PAD), seed=3)


def seen(text: Text, rate: float, masks: int = 256, hide: Any = "column") -> np.ndarray:
    """[n, l, l], as the objective draws it."""
    config = MaskConfig(rate, specials_in_budget=True)

    def draw() -> Any:
        return visible_to(text, masking.choose_many(config, text, min(masks, text.ids.shape[1]), DECODER_MASK), hide)

    return np.asarray(quick(draw)())


def test_half_of_ten_tokens() -> None:
    """T2: each mask hides 5 of 8 words; a position sees 5 tokens if it was in its mask (5 of 8 times), else 4."""
    visible = seen(ten_tokens(400), 0.5)
    inner = visible[:, 1:9]
    assert not visible[..., 10:].any(), "padding"
    assert inner[..., 0].all() and inner[..., 9].all(), "[CLS] and [SEP] are in no mask"
    assert not visible[:, np.arange(10), np.arange(10)].any(), "its own token"
    assert set(np.unique(inner.sum(2))) == {4, 5} and (visible[:, 0].sum(1) == 4).all()
    assert abs(inner.sum(2).mean() - 4.625) < 4 * math.sqrt(15 / 64 / 3200) * math.sqrt(3)  # masks are shared by some positions


def test_rates_nought_and_one() -> None:
    """T3: without masks all but itself; with all words in the mask nothing but [CLS] and [SEP], for every position."""
    text = ten_tokens(2)
    everything = np.asarray(visible_to(text, jnp.zeros((2, 3, 12), bool), "column"))
    expected = np.broadcast_to((np.arange(12) < 10) & ~np.eye(12, dtype=bool), (2, 12, 12))
    np.testing.assert_array_equal(everything, expected)
    nothing = seen(text, 1.0)
    np.testing.assert_array_equal(nothing[:, 1:9], np.broadcast_to(np.isin(np.arange(12), [0, 9]), (2, 8, 12)))


def test_hidden_counts_and_words_of_several_pieces() -> None:
    """T2 on texts of any length: at most the budget and one more is hidden, whole words and the own token."""
    rows = masked_rows(40, seed=2)
    text = Text.of(rows["input_ids"], rows["length"], rows["word_start"], rows["index"], context().special_ids, 3)
    column, word = seen(text, 0.5), seen(text, 0.5, hide="word")
    for n, (length, sizes) in enumerate(zip(np.asarray(text.length), np.asarray(text.words), strict=True)):
        parts = [set(range(at, at + size)) for at, size in enumerate(sizes.tolist()) if size]
        for i in range(1, length - 1):
            hidden = {j for j in range(length) if not column[n, i, j]}
            assert i in hidden and len(hidden) <= max(1, round(0.5 * length)) + 1 and not hidden & {0, length - 1}
            split = [part for part in parts if part & hidden and not part <= hidden]
            assert split in ([], [part for part in parts if i in part]), "only the own word may be hidden in part"
            own = next((part for part in parts if i in part), {i})
            assert {j for j in range(length) if not word[n, i, j]} == hidden | own, "hide='word': the own word too"


def test_positions_draw_one_of_the_first_masks_evenly() -> None:
    """Of 12 masks, 10 may be drawn by a text of 10 tokens; each is known by the one column that it hides."""
    text = ten_tokens(600)
    hides = jnp.broadcast_to(jnp.eye(12, dtype=bool), (600, 12, 12))
    visible = np.asarray(quick(lambda: visible_to(text, hides, "column"))())
    counts = np.zeros(12)
    for i in range(10):
        others = [j for j in range(10) if j != i]
        counts[others] += (~visible[:, i, others]).sum(0)
    assert not counts[10:].any() and visible[:, :, :10].sum() > 0
    np.testing.assert_allclose(counts[:10] / 9, 60, atol=4 * math.sqrt(60 / 9))
    few = np.asarray(quick(lambda: visible_to(text, hides[:, :3], "column"))())
    assert few[:, 5, [3, 4, 6, 7, 8, 9]].all(), "three masks, three columns"


def test_masks_follow_seed_and_stream_index_alone() -> None:
    """The same row in another batch has the same masks; nothing of [length, length] comes from the host."""
    assert all(len(field.tail) <= 1 for field in retromae().fields().values())
    text = ten_tokens(6)
    whole = seen(text, 0.5)

    def of(rows: Any, seed: int = 3) -> Text:
        index = text.index[rows]
        return dataclasses.replace(
            text, ids=text.ids[rows], length=text.length[rows], words=text.words[rows], index=index, side=index * 0, seed=seed
        )

    rows = np.array([4, 1, 2])
    np.testing.assert_array_equal(seen(of(rows), 0.5), whole[rows])
    assert (seen(of(rows, seed=4), 0.5) != whole[rows]).any((1, 2)).all()
    assert len({row.tobytes() for row in whole}) == 6


def numpy_decoder(ctx: Any, params: Any, ids: Any, h: Any, visible: Any, query_norm: bool) -> np.ndarray:
    """One post-LayerNorm layer, query stream to context stream, by loops over heads, positions and what they see."""
    p, tables = jax.tree.map(lambda leaf: leaf[0], params["two_stream"]), params["encoder"]["embeddings"]
    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))

    def norm(x: Any, q: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * q["scale"] + q["bias"]

    def linear(x: Any, q: Any) -> Any:
        return x @ q["kernel"] + q["bias"]

    out, place = [], tables["position"][: ids.shape[1]]
    for row, vector, see in zip(ids, h, visible, strict=True):
        clean = norm(tables["word"][row] + place + tables["type"][0], tables["norm"])
        stream = np.concatenate([vector[None], clean[1:]])
        query = norm(vector + place + tables["type"][0], tables["norm"]) if query_norm else vector + place
        q, k, v = (linear(x, p["attention"][name]) for x, name in ((query, "query"), (stream, "key"), (stream, "value")))
        mixed, size = np.zeros_like(q), q.shape[1] // ctx.encoder.heads
        for i in range(len(row)):
            keys = np.flatnonzero(see[i]) if see[i].any() else np.arange(len(row))
            for part in np.split(np.arange(q.shape[1]), ctx.encoder.heads):
                score = np.exp(k[keys][:, part] @ q[i, part] / math.sqrt(size))
                mixed[i, part] = score / score.sum() @ v[keys][:, part]
        x = norm(query + linear(mixed, p["attention"]["output"]), p["attention"]["norm"])
        out.append(norm(x + linear(gelu(linear(x, p["ffn"]["up"])), p["ffn"]["down"]), p["ffn"]["norm"]))
    return np.stack(out)


@pytest.mark.parametrize("query_norm", [False, True])
def test_two_streams_by_numpy(query_norm: bool) -> None:
    """The query stream is position + h as it is, or (DupMAE) with type and LayerNorm; h has no position in the context."""
    objective = retromae(query_norm=query_norm)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.4, leaf.shape), params_of(objective))
    with jax.enable_x64(True):
        encoded = read_now(objective, params, ROWS)
        visible = rng.random((6, 16, 16)) < 0.4
        found = quick(lambda p: objective.decode(p, encoded, jnp.asarray(visible)))(params)
        assert found.dtype == jnp.float64
    ids, h = np.asarray(ROWS["input_ids"]), np.asarray(encoded.cls)
    expected = numpy_decoder(objective.context, params, ids, h, visible, query_norm)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_position_does_not_see_its_own_token() -> None:
    """T17: the clean token x_i changes nothing at i, nor where its column is hidden, and something wherever it is seen."""
    objective = retromae()
    params = params_of(objective)
    encoded = read_now(objective, params, ROWS)
    visible = jnp.asarray(seen(encoded.text, 0.5))

    @quick
    def decode(ids: Any) -> Any:
        return objective.decode(params, encoded._replace(text=dataclasses.replace(encoded.text, ids=ids)), visible)

    before = decode(encoded.text.ids)
    for at in (1, 3):
        moved = np.abs(np.asarray(decode(encoded.text.ids.at[:, at].add(1)) - before)).max(2)
        real = np.arange(16) < np.asarray(encoded.text.length)[:, None]
        sees = np.asarray(visible)[:, :, at]
        assert not moved[real & ~sees].any() and (moved[real & sees] > 0).all() and not sees[:, at].any()


def test_all_of_the_text_is_predicted() -> None:
    """T18: T - 2 labels a row, and the masked tokens alone for the encoder."""
    objective = retromae()
    encoded, metrics = read_now(objective, params_of(objective), ROWS), run(objective, params_of(objective), ROWS)[1]
    assert (np.asarray(all_text(encoded.text).weight.sum(1)) == np.asarray(ROWS["length"]) - 2).all()
    assert metrics["decoder"][1] == (ROWS["length"] - 2).sum() and metrics["mlm"][1] == encoded.chosen.sum()


def test_a_layer_with_its_own_input_as_memory_is_an_ordinary_one() -> None:
    """T19."""
    encoder = context().encoder
    params = bert.init_layers(encoder, 1, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (3, 7, 16))
    real = bert.real_tokens(jnp.asarray([7, 4, 5]), 7)
    plain = bert.run_layers(encoder, 1, params, x, real)
    square = jnp.broadcast_to(real, (3, 1, 7, 7))
    np.testing.assert_allclose(bert.run_layers(encoder, 1, params, x, square, memory=x), plain, rtol=1e-6, atol=1e-6)
    other = bert.run_layers(encoder, 1, params, x, square, memory=x[:, ::-1])
    assert float(jnp.abs(other - plain)[1:].max()) > 1e-3, "the memory is read"


@pytest.mark.parametrize(("config", "terms"), [({}, 2), (DUP, 2.1)])
def test_uniform_logits_cost_ln_v(config: dict[str, Any], terms: float) -> None:
    """T6: RetroMAE 2 ln V, DupMAE 2.1 ln V."""
    objective = retromae(**config)
    np.testing.assert_allclose(run(objective, flat_head(params_of(objective)), ROWS)[0], terms * np.log(90), rtol=1e-6)


def test_dupmae_by_hand() -> None:
    """The loss is MLM + decoder + 0.1 of the cross entropy to the largest logits over the tokens after [CLS], [SEP] included."""
    objective = retromae(**DUP)
    params = params_of(objective)
    loss, metrics, _ = run(objective, params, ROWS)
    encoded = read_now(objective, params, ROWS)
    head = params["mlm_head"]
    x = jax.nn.gelu(encoded.hidden.last @ head["dense"]["kernel"] + head["dense"]["bias"], approximate=False)
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-12)
    logits = np.asarray((x @ params["encoder"]["embeddings"]["word"].T + head["bias"])[..., :90], np.float64)
    costs = []
    for ids, length, row in zip(np.asarray(ROWS["input_ids"]), np.asarray(ROWS["length"]), logits, strict=True):
        largest = row[1:length].max(0)
        costs.append(np.mean(np.log(np.exp(largest).sum()) - largest[ids[1 : length - 1]]))
    np.testing.assert_allclose(metrics["bow"][0] / metrics["bow"][1], np.mean(costs), rtol=1e-5)
    parts = [metrics[name][0] / metrics[name][1] for name in ("mlm", "decoder", "bow")]
    np.testing.assert_allclose(loss, np.dot(parts, [1, 1, 0.1]), rtol=1e-6)


def test_parts_equal_the_whole() -> None:
    """T21."""
    same_in_parts(retromae(**DUP, hide="word"), ROWS)


def test_padding() -> None:
    """T24, masks of every kind held fixed."""
    objective = retromae(**DUP)
    params, sums = params_of(objective), []
    visible = jnp.asarray(seen(read_now(objective, params, ROWS).text, 0.5))
    for pads in (0, 5):
        wide = jnp.pad(visible, ((0, 0), (0, pads), (0, pads)))
        sums.append(quick(lambda n=pads, wide=wide: objective.score_seen(params, read(objective, params, ROWS, n), wide)[1])())
    for name in ("mlm", "decoder", "bow"):
        np.testing.assert_allclose(sums[1][name], sums[0][name], rtol=1e-5)


def test_export() -> None:
    exported_tower_is_the_encoder(retromae(**DUP), ROWS)


def test_the_decoder_needs_the_vector() -> None:
    """T23: where all words are hidden, 8 sentences cost nothing with their vectors and, without, at least the entropy of a place."""
    rows = few_words()
    objective = retromae(context(hidden=32, heads=2, intermediate=64, layers=1), decoder_mask=MaskConfig(1.0))
    floor = entropy_given(rows, range(1, 15))
    found = overfit(objective, rows, 300, 3e-3, lambda h: h, jnp.zeros_like, lambda h: h[::-1])
    (true, zero, other), (_, blind, _) = found
    assert true < 0.05 and min(zero, other) > 0.5
    assert 0.5 < floor - 1e-3 < blind < floor + 0.2, "trained without, it comes down to the floor and no lower"


def test_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="base_masks=-1 must not be negative"):
        parse(RetroMaeConfig, {"base_masks": -1})
    with pytest.raises(ConfigError, match="n_decoder_layers=0"):
        parse(RetroMaeConfig, {"n_decoder_layers": 0})
    with pytest.raises(ConfigError, match=r"config\.decoder_mask: mask rate 0\.0 is outside \(0, 1\]"):
        parse(RetroMaeConfig, {"decoder_mask": {"rate": 0.0}})
    with pytest.raises(ConfigError, match=r"bow_weight=-0\.1 is negative"):
        parse(RetroMaeConfig, {"bow_weight": -0.1})
    assert retromae(base_masks=4).masks == 4 and retromae().masks == 16, "a text draws no more masks than it has tokens"
