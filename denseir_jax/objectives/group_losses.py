"""Losses of a query and its own group of passages, from their scores: by pairs, by margins, one by one, and after a teacher.

Scores are [b, n] with the positive in column 0; `keep` [b, n] is False for members that take no part (a second passage that is
known to answer the query). Every loss comes as (sum, count) of what it is the mean of.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Pair = tuple[Float[Array, ""], Float[Array, ""]]
Scores = Float[Array, "b n"]
Keep = Bool[Array, "b n"]


def pairwise_nll(scores: Scores, keep: Keep) -> Pair:
    """log(1 + exp(s- - s+)), the mean over negatives: softmax between two (ANCE's "triplet"; Xiong et al. 2021, section 2)."""
    return _over_negatives(jax.nn.softplus(_gaps(scores)), keep)


def hinge(scores: Scores, keep: Keep, margin: float) -> Pair:
    """max(0, margin - s+ + s-), the mean over negatives: the triplet loss."""
    return _over_negatives(jax.nn.relu(margin + _gaps(scores)), keep)


def soft_margin(scores: Scores, keep: Keep, margin: float) -> Pair:
    """log(1 + exp(margin - s+ + s-)), the mean over negatives."""
    return _over_negatives(jax.nn.softplus(margin + _gaps(scores)), keep)


def bce(scores: Scores, keep: Keep) -> Pair:
    """-log sigma(s+) - sum over negatives of log sigma(-s-), the mean over queries."""
    cells = jnp.concatenate([jax.nn.softplus(-scores[:, :1]), jnp.where(keep[:, 1:], jax.nn.softplus(scores[:, 1:]), 0)], axis=1)
    return cells.sum(), jnp.asarray(scores.shape[0], scores.dtype)


def margin_mse(scores: Scores, teacher: Scores, keep: Keep) -> Pair:
    """((s+ - s-) - (t+ - t-))^2, the mean over negatives (Hofstätter et al. 2020)."""
    return _over_negatives(jnp.square(_gaps(scores) - _gaps(teacher)), keep)


def local_kl(
    scores: Scores, teacher: Scores, keep: Keep, temperature: float = 1.0, teacher_temperature: float = 1.0, by_element: bool = False
) -> Pair:
    """KL(softmax(t / teacher_temperature) || softmax(s / temperature)), both over the own group.

    Args:
        by_element: the mean is over cells (RetroMAE's reduction), not over queries.
    """
    target = _log_softmax(teacher / teacher_temperature, keep)
    return _kl(target, _log_softmax(scores / temperature, keep), keep, by_element)


def global_kl(
    scores: Scores, log_total: Float[Array, " b"], teacher: Scores, keep: Keep, temperature: float = 1.0, teacher_temperature: float = 1.0
) -> Pair:
    """KL(T || S), the teacher's softmax over the own group against the student's over all passages of the batch.

    Gao & Callan 2022 (coCondenser), section 5.1: unlike `local_kl` it keeps the pressure of the other groups.

    Args:
        log_total: logsumexp of every query's scores / temperature over all candidates, its own group's among them.
    """
    target = _log_softmax(teacher / teacher_temperature, keep)
    return _kl(target, scores / temperature - log_total[:, None], keep, by_element=False)


def _gaps(scores: Scores) -> Float[Array, "b m"]:
    return scores[:, 1:] - scores[:, :1]


def _over_negatives(values: Float[Array, "b m"], keep: Keep) -> Pair:
    return jnp.where(keep[:, 1:], values, 0).sum(), keep[:, 1:].sum(dtype=values.dtype)


def _log_softmax(scores: Scores, keep: Keep) -> Scores:
    """Over the members that take part; -inf for the others."""
    scores = jnp.where(keep, scores, -jnp.inf)
    return scores - jax.nn.logsumexp(scores, axis=1, keepdims=True)


def _kl(target: Scores, found: Scores, keep: Keep, by_element: bool) -> Pair:
    """Sum of p (log p - log q) over the members that take part, 0 log 0 = 0."""
    p = jnp.exp(target)
    cells = jnp.where(keep & (p > 0), p * (jnp.where(p > 0, target, 0) - jnp.where(keep, found, 0)), 0)
    count = keep.sum(dtype=cells.dtype) if by_element else jnp.asarray(cells.shape[0], cells.dtype)
    return cells.sum(), count
