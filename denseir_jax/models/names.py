"""Our parameter trees <-> the tensor names of Hugging Face BERT, RoBERTa and ELECTRA, in numpy. Gradients map the same way.

Linear weights are transposed ([in, out] here, [out, in] there), layers are stacked here and apart there, vocabulary
tables are padded here and cropped there. Nothing is computed: a round trip is exact.
"""

import operator
from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np

from denseir_jax.core.errors import InputError

Tensors = dict[str, np.ndarray]
Tree = Mapping[str, Any]

_LINEAR = {"kernel": "weight", "bias": "bias"}
_NORM = {"scale": "weight", "bias": "bias"}
# Our block -> (their block, our leaf -> their leaf). Paths are written with "/", as leaves of the nested tree.
_LAYER = {
    "attention/query": ("attention.self.query", _LINEAR),
    "attention/key": ("attention.self.key", _LINEAR),
    "attention/value": ("attention.self.value", _LINEAR),
    "attention/output": ("attention.output.dense", _LINEAR),
    "attention/norm": ("attention.output.LayerNorm", _NORM),
    "ffn/up": ("intermediate.dense", _LINEAR),
    "ffn/down": ("output.dense", _LINEAR),
    "ffn/norm": ("output.LayerNorm", _NORM),
}
_EMBEDDINGS = {
    "": ("", {"word": "word_embeddings.weight", "position": "position_embeddings.weight", "type": "token_type_embeddings.weight"}),
    "norm": ("LayerNorm", _NORM),
}
_PROJECT = {"project": ("embeddings_project", _LINEAR)}  # where tables and layers differ in width
_OUTPUT = {"": ("", {"bias": "bias", "table": "decoder.weight"})}
_HEADS = {  # by architecture, after its prefix
    "bert": _OUTPUT | {"dense": ("transform.dense", _LINEAR), "norm": ("transform.LayerNorm", _NORM)},
    "roberta": _OUTPUT | {"dense": ("dense", _LINEAR), "norm": ("layer_norm", _NORM)},
    "electra": {
        "": ("lm_head", {"bias": "bias", "table": "weight"}),
        "dense": ("predictions.dense", _LINEAR),
        "norm": ("predictions.LayerNorm", _NORM),
    },
}
_OUT_PROJ = {"dense": ("classifier.dense", _LINEAR), "out": ("classifier.out_proj", _LINEAR)}
_CLASSIFIERS = {  # of a pair, by architecture
    "bert": {"dense": ("bert.pooler.dense", _LINEAR), "out": ("classifier", _LINEAR)},
    "roberta": _OUT_PROJ,
    "electra": _OUT_PROJ,
}
_VOCABULARY = ("word", "bias", "table")  # leaves at the top of embeddings or head with one row a token
ENCODER_PREFIX, LAYERS_PREFIX = "", "encoder.layer."
HEAD_PREFIX = {"bert": "cls.predictions.", "roberta": "lm_head.", "electra": "generator_"}


def encoder_to_hf(encoder: Tree, vocab_size: int, prefix: str = ENCODER_PREFIX) -> Tensors:
    """``{"embeddings", ["layers"]}`` to their names after `prefix` ("", "roberta.", "lm.bert."); the vocabulary is cropped."""
    embeddings = _to_hf(encoder["embeddings"], _EMBEDDINGS, f"{prefix}embeddings.", vocab_size)
    if "project" in encoder["embeddings"]:
        embeddings |= _to_hf(encoder["embeddings"], _PROJECT, prefix)
    return embeddings | layers_to_hf(encoder.get("layers", {}), prefix + LAYERS_PREFIX)


def encoder_from_hf(tensors: Mapping[str, np.ndarray], layers: int, rows: int, prefix: str = ENCODER_PREFIX) -> dict[str, Any]:
    """The inverse: `layers` layers stacked, the vocabulary padded with zeros to `rows`.

    Raises:
        InputError: tensors are missing; they are named.
    """
    encoder = {"embeddings": _from_hf(tensors, _EMBEDDINGS, f"{prefix}embeddings.", rows)}
    if f"{prefix}embeddings_project.weight" in tensors:
        encoder["embeddings"] |= _from_hf(tensors, _PROJECT, prefix)
    return encoder | ({"layers": layers_from_hf(tensors, layers, prefix + LAYERS_PREFIX)} if layers else {})


def layers_to_hf(layers: Tree, prefix: str) -> Tensors:
    """A stack of layers to ``<prefix>N.attention...``, as in "encoder.layer." or "c_head."; an empty tree to nothing."""
    if not layers:
        return {}
    arrays = _map(np.asarray, layers)
    out: Tensors = {}
    for n in range(len(arrays["ffn"]["norm"]["scale"])):
        out |= _to_hf(_map(operator.itemgetter(n), arrays), _LAYER, f"{prefix}{n}.")
    return out


def layers_from_hf(tensors: Mapping[str, np.ndarray], n: int, prefix: str) -> dict[str, Any]:
    """The inverse: `n` >= 1 layers stacked [n, ...].

    Raises:
        InputError: tensors are missing; they are named.
    """
    return _stack([_from_hf(tensors, _LAYER, f"{prefix}{i}.") for i in range(n)])


def mlm_head_to_hf(head: Tree, vocab_size: int, prefix: str | None = None, architecture: str = "bert") -> Tensors:
    """The MLM head to its architecture's names, after `prefix` instead of the usual one; a tied head has no output table."""
    return _to_hf(head, _HEADS[architecture], HEAD_PREFIX[architecture] if prefix is None else prefix, vocab_size)


def mlm_head_from_hf(
    tensors: Mapping[str, np.ndarray], rows: int, tied: bool, prefix: str | None = None, architecture: str = "bert"
) -> dict[str, Any]:
    """The inverse; `tied` leaves the output table, a copy of the word table, out.

    Raises:
        InputError: tensors are missing; they are named.
    """
    prefix = HEAD_PREFIX[architecture] if prefix is None else prefix
    return _from_hf(tensors, _HEADS[architecture], prefix, rows, absent=("table",) if tied else ())


def has_mlm_head(tensors: Container[str], architecture: str) -> bool:
    """Whether the MLM head is among the tensors of these names."""
    return f"{HEAD_PREFIX[architecture]}{_HEADS[architecture]['dense'][0]}.weight" in tensors


def classifier_to_hf(classifier: Tree, architecture: str) -> Tensors:
    """``{"dense", "out"}`` to the names of its architecture's ``ForSequenceClassification``."""
    return _to_hf(classifier, _CLASSIFIERS[architecture], "")


def classifier_from_hf(tensors: Mapping[str, np.ndarray], architecture: str) -> dict[str, Any]:
    """The inverse.

    Raises:
        InputError: tensors are missing; they are named.
    """
    return _from_hf(tensors, _CLASSIFIERS[architecture], "")


def has_classifier(tensors: Container[str], architecture: str) -> bool:
    """Whether the classifier is among the tensors of these names."""
    return f"{_CLASSIFIERS[architecture]['out'][0]}.weight" in tensors


def projection_to_st(projection: Tree) -> tuple[Tensors, Tensors]:
    """A Linear + LayerNorm as the tensors of the sentence-transformers modules Dense and LayerNorm."""
    dense, norm = {"dense": ("linear", _LINEAR)}, {"norm": ("norm", _NORM)}
    return _to_hf({"dense": projection["dense"]}, dense, ""), _to_hf({"norm": projection["norm"]}, norm, "")


def projection_from_st(dense: Mapping[str, np.ndarray], norm: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The inverse.

    Raises:
        InputError: tensors are missing; they are named.
    """
    return _from_hf({**dense, **norm}, {"dense": ("linear", _LINEAR), "norm": ("norm", _NORM)}, "")


_Table = Mapping[str, tuple[str, Mapping[str, str]]]


def _rows(table: _Table, prefix: str) -> list[tuple[str, str, str]]:
    """(our block, our leaf, their full name) of every tensor of a table."""
    return [
        (block, leaf, f"{prefix}{theirs}{'.' if theirs else ''}{name}")
        for block, (theirs, leaves) in table.items()
        for leaf, name in leaves.items()
    ]


def _to_hf(tree: Tree, table: _Table, prefix: str, vocab_size: int = 0) -> Tensors:
    out = {}
    for block, leaf, name in _rows(table, prefix):
        inner = tree
        for part in filter(None, block.split("/")):
            inner = inner[part]
        if leaf not in inner:  # only the table of a tied head
            continue
        tensor = np.asarray(inner[leaf])
        out[name] = tensor.T if leaf == "kernel" else tensor[:vocab_size] if not block and leaf in _VOCABULARY else tensor
    return out


def _from_hf(tensors: Mapping[str, np.ndarray], table: _Table, prefix: str, rows: int = 0, absent: tuple[str, ...] = ()) -> dict[str, Any]:
    wanted = [(block, leaf, name) for block, leaf, name in _rows(table, prefix) if leaf not in absent]
    missing = [name for _, _, name in wanted if name not in tensors]
    if missing:
        raise InputError(f"missing tensors: {', '.join(missing[:5])}{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}")
    tree: dict[str, Any] = {}
    for block, leaf, name in wanted:
        inner, tensor = tree, tensors[name]
        for part in filter(None, block.split("/")):
            inner = inner.setdefault(part, {})
        inner[leaf] = tensor.T if leaf == "kernel" else _padded(tensor, rows) if not block and leaf in _VOCABULARY else tensor
    return tree


def _padded(tensor: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(tensor, [(0, rows - len(tensor))] + [(0, 0)] * (tensor.ndim - 1))


def _map(change: Callable[[Any], Any], tree: Any) -> Any:
    return {key: _map(change, value) for key, value in tree.items()} if isinstance(tree, Mapping) else change(tree)


def _stack(trees: list[Any]) -> Any:
    first = trees[0]
    return {key: _stack([tree[key] for tree in trees]) for key in first} if isinstance(first, Mapping) else np.stack(trees)
