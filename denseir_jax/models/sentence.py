"""The sentence-transformers side of a model folder: modules.json, pooling, projection, normalisation, prompts, length.

It has no module for a lexical part: of such a model it gives the dense vector alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.template import TextTemplate
from denseir_jax.models import names
from denseir_jax.models.embedder import EmbedderConfig

IDENTITY = "torch.nn.modules.linear.Identity"
# sentence-transformers has no pooling over the first k tokens. This name makes it refuse the folder, where it would
# otherwise give other vectors; we read it.
FIRST_TOKENS = "denseir_jax.FirstTokensPooling"
_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def body_of(folder: Path) -> Path:
    """Where config.json and the weights lie: the folder itself, or the subfolder that old exports keep the encoder in."""
    modules = _modules(folder)
    return folder / modules[0][1] if modules and modules[0][0] == "Transformer" else folder


def max_seq_length(folder: Path) -> int | None:
    """Most tokens a text, as ``sentence_bert_config.json`` says, [CLS] and [SEP] included; None where nothing does."""
    path = body_of(folder) / "sentence_bert_config.json"
    length = artifacts.read_json(path).get("max_seq_length") if path.exists() else None
    return None if length is None else int(length)


def read_modules(folder: Path, hidden: int, classified: bool = False) -> tuple[EmbedderConfig, dict[str, Any] | None]:
    """Pooling, projection and normalisation, with the projection's parameters if there is one.

    A folder without ``modules.json`` says nothing; it is read as the first token's state, not normalised.

    Args:
        classified: the model has a classifier: a cross-encoder's only module is a Transformer, which says nothing either.
    Raises:
        InputError: a module, an order of modules or a pooling mode that an embedder cannot express; it is named.
    """
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    if not modules or (classified and kinds == ["Transformer"]):
        return EmbedderConfig(), None
    tail = kinds[2:]
    normalize = tail[-1:] == ["Normalize"]
    projected = tail[:2] == ["Dense", "LayerNorm"]
    if kinds[:1] != ["Transformer"] or kinds[1:2] not in (["Pooling"], [_kind(FIRST_TOKENS)]) or len(tail) != 2 * projected + normalize:
        raise InputError(
            f"{folder}/modules.json: cannot express the modules {', '.join(kinds)}; "
            "expected Transformer, Pooling, then Dense and LayerNorm if projected, then Normalize if normalised"
        )
    pooling_config = folder / modules[1][1] / "config.json"
    projection = _read_projection(folder / modules[2][1], folder / modules[3][1], hidden) if projected else None
    size = len(projection["dense"]["bias"]) if projection else 0
    if kinds[1] == "Pooling":
        return EmbedderConfig(_pooling(pooling_config), projection=size, normalize=normalize), projection
    first_k = artifacts.read_json(pooling_config)["first_k"]
    return EmbedderConfig("first", first_k, projection=size, normalize=normalize), projection


def _modules(folder: Path) -> list[tuple[str, str]]:
    """(class name, path within the folder) in order; empty without modules.json."""
    path = folder / "modules.json"
    if not path.exists():
        return []
    return [(_kind(str(module["type"])), module["path"]) for module in artifacts.read_json(path)]


def _kind(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _pooling(path: Path) -> Any:
    config = artifacts.read_json(path)
    stated = config.get("pooling_mode", [mode for key, mode in _LEGACY_MODES.items() if config.get(key)])
    modes = [stated] if isinstance(stated, str) else list(stated) or ["mean"]
    if len(modes) > 1 or modes[0] not in ("cls", "mean"):
        raise InputError(f"{path}: pooling {' + '.join(modes)} is not supported; expected cls or mean")
    if not config.get("include_prompt", True):
        raise InputError(f"{path}: pooling that leaves the prompt's tokens out (include_prompt false) is not supported")
    return modes[0]


def _read_projection(dense: Path, norm: Path, hidden: int) -> dict[str, Any]:
    config = artifacts.read_json(dense / "config.json")
    activation = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    if activation != "Identity" or not config.get("bias", True) or config.get("use_residual"):
        raise InputError(
            f"{dense}/config.json: a Dense module with activation {activation}, bias {config.get('bias', True)}, "
            f"residual {bool(config.get('use_residual'))} is not supported; expected Identity, bias, no residual"
        )
    try:
        read = names.projection_from_st(*(load_file(part / "model.safetensors") for part in (dense, norm)))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{dense.parent}: the projection cannot be read: {error}; expected model.safetensors") from None
    shape = read["dense"]["kernel"].shape
    if shape != (hidden, len(read["norm"]["scale"])):
        raise InputError(f"{dense}: projects {shape[0]} to {shape[1]}; expected {hidden} to {len(read['norm']['scale'])}")
    return {part: {leaf: array.astype(np.float32) for leaf, array in leaves.items()} for part, leaves in read.items()}


def write_modules(
    folder: Path, config: EmbedderConfig, params: Mapping[str, Any], hidden: int, template: TextTemplate, longest: int, euclidean: bool
) -> None:
    """Write modules.json with the folders of its modules, the prompts and the length.

    Args:
        params: {"projection"} if the config has one. longest: most tokens a text; queries have no length of their own there.
        euclidean: vectors are compared by distance.
    """
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    pooling: dict[str, Any] = {"word_embedding_dimension": hidden}
    if config.pooling == "first" and config.first_k > 1:
        modules[1] = (FIRST_TOKENS, "1_Pooling")
        pooling["first_k"] = config.first_k
    else:
        mode = "mean" if config.pooling == "mean" else "cls"
        pooling |= {key: mode == name for key, name in _LEGACY_MODES.items()}
    artifacts.write_json(folder / "1_Pooling" / "config.json", pooling)
    if config.projection:
        _write_projection(folder / "2_Dense", folder / "3_LayerNorm", params["projection"])
        modules += [("Dense", "2_Dense"), ("LayerNorm", "3_LayerNorm")]
    if config.normalize:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
        (folder / modules[-1][1]).mkdir()
    artifacts.write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": kind if "." in kind else f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(modules)
        ],
    )
    artifacts.write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    prompts = {"query": template.query_prefix, "document": template.passage_prefix}
    similarity = "cosine" if config.normalize else "euclidean" if euclidean else "dot"
    artifacts.write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": similarity},
    )


def _write_projection(dense: Path, norm: Path, projection: Mapping[str, Any]) -> None:
    tensors = names.projection_to_st(projection)
    out, into = tensors[0]["linear.weight"].shape
    sizes = {"in_features": into, "out_features": out, "bias": True, "activation_function": IDENTITY}
    for folder, config, part in ((dense, sizes, tensors[0]), (norm, {"dimension": out}, tensors[1])):
        artifacts.write_json(folder / "config.json", config)
        save_file({name: np.ascontiguousarray(tensor, np.float32) for name, tensor in part.items()}, folder / "model.safetensors")
