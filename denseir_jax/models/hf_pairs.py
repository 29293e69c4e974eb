"""Cross-encoders as Hugging Face folders: written here, read by `hf.read_folder`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts
from denseir_jax.models import hf, names
from denseir_jax.models.shape import EncoderConfig


def write_cross_encoder(
    folder: str | Path,
    encoder: EncoderConfig,
    params: Mapping[str, Any],
    tokenizer: hf.SavedTokenizer,
    longest: int,
    facts: Mapping[str, Any],
) -> None:
    """Write a folder that `hf.read_folder` and transformers (``ForSequenceClassification``) load; whole or not at all.

    Args:
        params: {"encoder", "classifier"}, numpy or JAX. longest: most tokens of a pair. facts: beside them, as ``denseir.json``.
    Raises:
        InputError: a tokenizer that does not go with the encoder, as in `hf.write_folder`.
    """
    hf.check_tokenizer(encoder, tokenizer)
    tensors = names.encoder_to_hf(params["encoder"], encoder.vocab_size, f"{encoder.architecture}.")
    tensors |= names.classifier_to_hf(params["classifier"], encoder.architecture)
    labels = [f"LABEL_{i}" for i in range(len(params["classifier"]["out"]["bias"]))]
    config = hf.config_of(encoder, tokenizer.pad_id, hf.CLASSIFIER)
    config |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    with artifacts.new_folder(Path(folder)) as temporary:
        hf.write_body(temporary, tensors, config)
        tokenizer.save(temporary, longest)
        artifacts.write_json(temporary / "denseir.json", facts)
