"""Encoder shapes by name, the same in every recipe card."""

from denseir_jax.models.shape import EncoderConfig

SIZES = ("smoke", "tiny", "small", "base")


def encoder(size: str, vocab_size: int = 30522) -> EncoderConfig:
    """The encoder of a size: "smoke" (for tests), "tiny" and "small" (BERT-tiny and BERT-small of Turc et al. 2019,
    arXiv 1908.08962), "base" (BERT-base of Devlin et al. 2019, arXiv 1810.04805, with bfloat16 products).

    Raises:
        ValueError: another name.
    """
    if size == "smoke":
        return EncoderConfig(vocab_size, hidden=32, layers=2, heads=2, intermediate=64, max_length=64, scan=True)
    if size == "tiny":
        return EncoderConfig(vocab_size, hidden=128, layers=2, heads=2, intermediate=512)
    if size == "small":
        return EncoderConfig(vocab_size, hidden=512, layers=4, heads=8, intermediate=2048)
    if size == "base":
        return EncoderConfig(vocab_size, hidden=768, layers=12, heads=12, intermediate=3072, dtype="bfloat16", scan=True, remat=True)
    raise ValueError(f"unknown size {size!r}; known: {', '.join(SIZES)}")
