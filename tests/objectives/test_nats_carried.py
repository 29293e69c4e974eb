"""What a decoder takes from the vector, against the loss computed by hand with the vectors of other rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_model import context, masked_rows, params_of, span_rows

from denseir_jax.analyses.bottleneck import cls_cosine, nats_carried
from denseir_jax.models import bert
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.mlm import MlmConfig
from denseir_jax.objectives.retromae import RetroMaeConfig
from denseir_jax.objectives.seed import SeedConfig

COT_MAE = BottleneckConfig(tokens="other", pairs="random", n_head_layers=1)
LEXMAE = BottleneckConfig(tokens="masked", bottleneck="lexical", n_head_layers=1)
BASIC = BottleneckConfig(tokens="masked", n_head_layers=1)


def trained(objective: Any, rows: Any) -> Any:
    """Parameters far enough from the start that vectors matter."""
    return jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(9), leaf.shape), params_of(objective))


@pytest.mark.parametrize(
    "config", [BASIC, LEXMAE, COT_MAE, SeedConfig(), RetroMaeConfig()], ids=["basic", "lexmae", "cot_mae", "seed", "retromae"]
)
def test_the_vector_of_the_row_before(config: Any) -> None:
    """Every text is decoded from the vector of another row: for pairs from that of the same side, so never from its own."""
    objective = config.build(context())
    pairs = objective.reading.pairs is not None
    rows = span_rows(3) if pairs else masked_rows(4)
    params = trained(objective, rows)
    found = nats_carried(objective, params, [rows, rows])
    assert found.true.shape == (2,) and (found.nats == found.shuffled - found.true).all()
    encoded = objective.read(params, rows, None, objective.reads_layers)
    vectors = np.asarray(objective.vector(params, encoded))
    texts = 2 if pairs else 1
    moved = vectors.reshape(-1, texts, vectors.shape[1])[[-1, *range(len(vectors) // texts - 1)]].reshape(vectors.shape)
    for given, want in ((vectors, found.true), (moved, found.shuffled), (0 * vectors, found.zero)):
        total, count = objective.score(params, encoded._replace(instead=jnp.asarray(given)))[1][objective.decoder_term]
        np.testing.assert_allclose(want, float(total / count), rtol=1e-5)
    assert found.true[0] not in (found.shuffled[0], found.zero[0]), "the decoder reads the vector"
    plain = objective.score(params, encoded)[1][objective.decoder_term]
    np.testing.assert_allclose(found.true, float(plain[0] / plain[1]), rtol=1e-5)


def test_what_has_no_decoder_or_no_other_row_is_refused() -> None:
    mlm, seed = MlmConfig(mask=MaskConfig()).build(context()), SeedConfig().build(context())
    with pytest.raises(ValueError, match="Mlm decodes nothing from a vector"):
        nats_carried(mlm, params_of(mlm), [masked_rows(4)])
    with pytest.raises(ValueError, match="a batch has one row"):
        nats_carried(seed, params_of(seed), [masked_rows(1)])


def test_cosine_of_cls() -> None:
    """The mean over all pairs, whatever the number encoded at a time."""
    rows, encoder = masked_rows(5), context().encoder
    params = params_of(MlmConfig().build(context()))["encoder"]
    vectors = np.asarray(bert.encode(encoder, params, rows["input_ids"], rows["length"]).last[:, 0], np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    want = np.mean([unit[i] @ unit[j] for i in range(5) for j in range(i)])
    ids, length = np.asarray(rows["input_ids"]), np.asarray(rows["length"])
    np.testing.assert_allclose(
        [cls_cosine(encoder, params, ids, length), cls_cosine(encoder, params, ids, length, rows=2)], want, rtol=1e-5
    )
