"""Hugging Face folders in and out: what is read is BERT, RoBERTa or ELECTRA (its body alone) in safetensors; what is
written, transformers and sentence-transformers load. Pickled weights are never opened.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.template import TextTemplate
from denseir_jax.models import bert, heads, names, sentence
from denseir_jax.models.cross_encoder import init_classifier
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig, padded_vocab

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_SIZES = {  # ours -> theirs
    "vocab_size": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "max_length": "max_position_embeddings",
    "types": "type_vocab_size",
    "eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "init_std": "initializer_range",
}
_ARCHITECTURES = ("bert", "roberta", "electra")
# Settings that must have one value, which a config without the key has too.
_FIXED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
# Where ANCE (Xiong et al. 2021) keeps the projection of its vectors: Linear + LayerNorm.
_ANCE_HEAD = {
    "embeddingHead.weight": "linear.weight",
    "embeddingHead.bias": "linear.bias",
    "norm.weight": "norm.weight",
    "norm.bias": "norm.bias",
}
CLASSIFIER = "ForSequenceClassification"
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


class HfFolder(NamedTuple):
    """What a folder holds: params are ``{"encoder", ["mlm_head"], ["classifier"], ["projection"]}`` in float32 numpy; `tokenizer` is
    its path."""

    encoder: EncoderConfig
    params: dict[str, Any]
    embedder: EmbedderConfig
    tokenizer: Path


@runtime_checkable
class SavedTokenizer(Protocol):
    """What is needed of a tokenizer to write it beside the weights."""

    vocab_size: int
    pad_id: int

    def save(self, folder: Path, max_length: int | None = None) -> None: ...


def read_folder(folder: str | Path) -> HfFolder:
    """Read an encoder, with its MLM head and its sentence-transformers modules (or ANCE's projection) where there are any.

    Raises:
        InputError: no folder or config; another architecture, activation or position embedding; pickled weights only;
            missing, unexpected or misshapen tensors; pooling that cannot be expressed. What it is, is named.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected a Hugging Face model folder")
    body = sentence.body_of(folder)
    config = _read_config(body)
    where = _locate(body, config.tied_output)
    own = f"{config.architecture}."
    encoder_prefix = own if any(name.startswith(f"{own}embeddings.") for name in where) else ""
    params: dict[str, Any] = {}
    shapes = names.encoder_to_hf(_template(lambda key: bert.init_encoder(config, key)), config.vocab_size, encoder_prefix)
    _refuse_unexpected(body, where, encoder_prefix, shapes)
    rows = padded_vocab(config.vocab_size)
    params["encoder"] = names.encoder_from_hf(_read(body, where, shapes), config.layers, rows, encoder_prefix)
    if names.has_mlm_head(where, config.architecture):
        head = _template(lambda key: heads.init_mlm_head(config, key))
        found = _read(body, where, names.mlm_head_to_hf(head, config.vocab_size, architecture=config.architecture))
        params["mlm_head"] = names.mlm_head_from_hf(found, rows, config.tied_output, architecture=config.architecture)
    if (classifier := _read_classifier(body, where, config)) is not None:
        params["classifier"] = classifier
    embedder, projection = sentence.read_modules(folder, config.hidden, "classifier" in params)
    if "embeddingHead.weight" in where and not (folder / "modules.json").exists():
        embedder, projection = EmbedderConfig(projection=config.hidden), _read_ance_head(body, where, config.hidden)
    if projection is not None:
        params["projection"] = projection
    return HfFolder(config, params, embedder, body)


def _read_config(folder: Path) -> EncoderConfig:
    config = artifacts.read_json(folder / "config.json")
    architecture = config.get("model_type")
    if architecture not in _ARCHITECTURES:
        raise InputError(f"{folder}/config.json: model_type {architecture!r} is not supported; can be read: {', '.join(_ARCHITECTURES)}")
    for key, wanted in _FIXED.items():
        found = config.get(key, wanted)
        if found != wanted:
            raise InputError(f"{folder}/config.json: {key} {found!r} is not supported; expected {wanted!r}")
    lost = [key for key in list(_SIZES.values())[:5] if key not in config]
    if lost:
        raise InputError(f"{folder}/config.json lacks {', '.join(lost)}")
    sizes = {ours: config[theirs] for ours, theirs in _SIZES.items() if theirs in config}
    if architecture == "roberta":  # numbers its positions from the padding token's id + 1
        pad = config.get("pad_token_id", 1)
        if not isinstance(pad, int) or pad < 0:
            raise InputError(f"{folder}/config.json: pad_token_id {pad!r} says not where positions start; expected a token id")
        sizes |= {"position_offset": pad + 1, "max_length": sizes.get("max_length", 512) - pad - 1}
    if architecture == "electra":
        sizes["embedding"] = config.get("embedding_size", 128)
    try:
        return EncoderConfig(**sizes, tied_output=bool(config.get("tie_word_embeddings", True)))
    except ValueError as error:
        raise InputError(f"{folder}/config.json: {error}") from None


def _locate(folder: Path, tied: bool) -> dict[str, tuple[Path, str]]:
    """Tensor name -> (file, name in it), for one file or an index of several. Old LayerNorm names (gamma, beta) are mended.

    An MLM head's bias may be there twice; an output table of its own (not `tied`) goes with the bias beside it.
    """
    if (folder / WEIGHTS).exists():
        with _opened(folder / WEIGHTS) as file:
            found = dict.fromkeys(file.keys(), folder / WEIGHTS)
    elif (folder / INDEX).exists():
        found = {name: folder / shard for name, shard in artifacts.read_json(folder / INDEX)["weight_map"].items()}
    else:
        pickled = sorted(path.name for path in [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.ckpt")])
        if pickled:
            raise InputError(
                f"{folder} holds only {pickled[0]}, a pickle, which can run any code when it is opened; convert it to {WEIGHTS} "
                "with a tool that you trust, e.g. save_pretrained of transformers"
            )
        raise InputError(f"{folder} holds no {WEIGHTS}")
    where = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): (path, name)
        for name, path in found.items()
    }
    for head in names.HEAD_PREFIX.values():
        bias, beside = f"{head}bias", f"{head}decoder.bias"
        if beside in where and not (tied and bias in where):
            where[bias] = where[beside]
    return where


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, "np")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read as safetensors: {error}") from None


def _template(init: Any) -> Any:
    """Parameters of the right shapes that take no memory, for names and shapes alone."""
    shapes = jax.eval_shape(lambda: init(jax.random.key(0)))
    return jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), shapes)


def _refuse_unexpected(folder: Path, where: Iterable[str], prefix: str, expected: Iterable[str]) -> None:
    known = {*expected, *(prefix + name for name in _BUFFERS)}
    ours = (f"{prefix}embeddings.", f"{prefix}embeddings_project.", f"{prefix}encoder.")
    extra = sorted(name for name in where if name.startswith(ours) and name not in known)
    if extra:
        raise InputError(f"{folder}: tensors that this encoder has no place for: {_some(extra)}; config.json and weights do not match")


def _read(folder: Path, where: Mapping[str, tuple[Path, str]], shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The named tensors in float32, after checking presence, kind and shape of each."""
    missing = sorted(name for name in shapes if name not in where)
    if missing:
        raise InputError(f"{folder}: missing tensors: {_some(missing)}")
    out: dict[str, np.ndarray] = {}
    for path in sorted({where[name][0] for name in shapes}):
        with _opened(path) as file:
            stored = set(file.keys())
            for name in (name for name in shapes if where[name][0] == path):
                if where[name][1] not in stored:
                    raise InputError(f"{path} lacks the tensor {where[name][1]} that {INDEX} promises")
                tensor = file.get_tensor(where[name][1])
                if tensor.shape != shapes[name].shape:
                    raise InputError(
                        f"{path}: {name} has the shape {list(tensor.shape)}; expected {list(shapes[name].shape)} from config.json"
                    )
                if tensor.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
                    raise InputError(f"{path}: {name} is {tensor.dtype.name}; expected floating point numbers")
                out[name] = tensor.astype(np.float32)
    return out


def _read_ance_head(folder: Path, where: Mapping[str, tuple[Path, str]], hidden: int) -> dict[str, Any]:
    shapes = {name: np.zeros((hidden, hidden) if name == "embeddingHead.weight" else hidden, np.float32) for name in _ANCE_HEAD}
    found = _read(folder, where, shapes)
    return names.projection_from_st({_ANCE_HEAD[name]: tensor for name, tensor in found.items()}, {})


def _read_classifier(folder: Path, where: Mapping[str, tuple[Path, str]], config: EncoderConfig) -> dict[str, Any] | None:
    """The head of a ``ForSequenceClassification``, whatever its number of outputs; None for other models."""
    facts = artifacts.read_json(folder / "config.json")
    if not (has_classifier(facts) and names.has_classifier(where, config.architecture)):
        return None
    outputs = len(facts["id2label"]) if "id2label" in facts else facts.get("num_labels", 2)
    shapes = names.classifier_to_hf(_template(lambda key: init_classifier(config, outputs, key)), config.architecture)
    return names.classifier_from_hf(_read(folder, where, shapes), config.architecture)


def has_classifier(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is that of a ``ForSequenceClassification``."""
    return any(str(name).endswith(CLASSIFIER) for name in config.get("architectures") or ())


def _some(items: list[str]) -> str:
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def write_folder(
    folder: str | Path,
    encoder: EncoderConfig,
    embedder: EmbedderConfig,
    params: Mapping[str, Any],
    tokenizer: SavedTokenizer,
    template: TextTemplate,
    euclidean: bool = False,
) -> None:
    """Write a folder that `read_folder`, transformers and sentence-transformers load; whole or not at all.

    Title join and the queries' own length have no place in it: sentence-transformers cuts every text at the longer of the
    two lengths. Nor has a lexical part: its MLM head is among the weights, for BertForMaskedLM, but sentence-transformers
    gives the dense vector alone. The vocabulary is cropped to its true size.

    Args:
        params: {"encoder", ["mlm_head"], ["projection"]}, numpy or JAX. euclidean: vectors are compared by distance.
    Raises:
        InputError: pooling that sentence-transformers cannot express, a tokenizer with more tokens than the encoder, or one
            whose padding token's id is not what RoBERTa's positions are numbered from.
    """
    check_tokenizer(encoder, tokenizer)
    head = params.get("mlm_head")
    tensors = names.encoder_to_hf(params["encoder"], encoder.vocab_size, f"{encoder.architecture}." if head else "")
    if head:
        tensors |= names.mlm_head_to_hf(head, encoder.vocab_size, architecture=encoder.architecture)
        own = names.HEAD_PREFIX[encoder.architecture]
        if f"{own}decoder.weight" in tensors:  # a table of its own, beside which transformers looks for the bias
            tensors[f"{own}decoder.bias"] = tensors[f"{own}bias"]
    longest = min(max(template.query_length, template.passage_length), encoder.max_length)
    with artifacts.new_folder(Path(folder)) as temporary:
        write_body(temporary, tensors, config_of(encoder, tokenizer.pad_id, "ForMaskedLM" if head else "Model"))
        tokenizer.save(temporary, longest)
        sentence.write_modules(temporary, embedder, params, encoder.hidden, template, longest, euclidean)


def check_tokenizer(encoder: EncoderConfig, tokenizer: SavedTokenizer) -> None:
    """See that a tokenizer goes with an encoder.

    Raises:
        InputError: it has more tokens, or its padding token's id is not what RoBERTa's positions are numbered from.
    """
    if tokenizer.vocab_size > encoder.vocab_size:
        raise InputError(f"the tokenizer has {tokenizer.vocab_size} tokens, the encoder {encoder.vocab_size}; they do not belong together")
    encoder.check_pad_id(tokenizer.pad_id)


def write_body(folder: Path, tensors: names.Tensors, config: Mapping[str, Any]) -> None:
    """Write weights and ``config.json``."""
    contents = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    save_file(contents, folder / WEIGHTS, metadata={"format": "pt"})
    artifacts.write_json(folder / "config.json", config)


def config_of(encoder: EncoderConfig, pad_id: int, model: str) -> dict[str, Any]:
    """The ``config.json`` of an encoder. `model`: what follows the architecture in the class's name."""
    sizes = {theirs: getattr(encoder, ours) for ours, theirs in _SIZES.items()}
    sizes["max_position_embeddings"] += encoder.position_offset
    if encoder.embedding:
        sizes["embedding_size"] = encoder.embedding
    return {
        **sizes,
        **_FIXED,
        "model_type": encoder.architecture,
        "architectures": [encoder.architecture.capitalize() + model],
        "pad_token_id": pad_id,
        "tie_word_embeddings": encoder.tied_output,
    }
