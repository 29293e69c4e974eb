"""Dense retrieval in JAX: pre-train, fine-tune, mine, index and evaluate text encoders."""

__version__ = "0.1.0"
