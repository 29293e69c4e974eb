"""How far apart vectors lie."""

import numpy as np
from jaxtyping import Float


def cosine_spread(vectors: Float[np.ndarray, "n d"]) -> tuple[float, float]:
    """Mean and standard deviation of the cosine over all pairs of different rows; a mean near 1: they have all become one."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    return float(cosines.mean()), float(cosines.std())
