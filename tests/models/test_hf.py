"""Hugging Face folders: what we write comes back exactly and loads elsewhere; what we cannot read is refused by name."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from denseir_jax.core.errors import InputError
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import SPECIALS, load_tokenizer, wordpiece
from denseir_jax.models import bert, heads, hf, sentence
from denseir_jax.models.embedder import Embedder, EmbedderConfig
from denseir_jax.models.shape import EncoderConfig

WORDS = ("dense", "retrieval", "is", "query", "passage", ":", "a", "##s")
TOKENIZER = wordpiece({token: i for i, token in enumerate((*SPECIALS, *WORDS))}, lowercase=True)
ENCODER = EncoderConfig(
    vocab_size=16, hidden=8, layers=2, heads=2, intermediate=12, max_length=20, eps=1e-6, dropout=0.2, attention_dropout=0.0
)
UNTIED = dataclasses.replace(ENCODER, tied_output=False)
TEMPLATE = TextTemplate(query_prefix="query: ", passage_prefix="passage: ", query_length=8, passage_length=12)
TEXTS = ["dense retrieval is a query", "passages", "a a a a a a a a a a a a a a"]


def random_params(embedder=None, head=None):
    """Random in every leaf, LayerNorm and biases too; padded rows zero, as they come back."""

    def init():
        key = jax.random.key(0)
        params = Embedder(ENCODER, embedder or EmbedderConfig()).init(key)
        return params | ({"mlm_head": heads.init_mlm_head(head, key)} if head else {})

    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32), jax.eval_shape(init))
    params["encoder"]["embeddings"]["word"][16:] = 0
    for leaf in ("bias", "table"):
        if leaf in params.get("mlm_head", {}):
            params["mlm_head"][leaf][16:] = 0
    return params


def equal(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A full folder: mean pooling, projection, normalisation."""
    path = tmp_path_factory.mktemp("models") / "written"
    embedder = EmbedderConfig("mean", projection=6, normalize=True)
    hf.write_folder(path, ENCODER, embedder, random_params(embedder), TOKENIZER, TEMPLATE)
    return path


def ours(folder, texts):
    """Vectors of whole texts by our own reader, tokenizer and embedder."""
    read = hf.read_folder(folder)
    tokenizer, longest = load_tokenizer(read.tokenizer), sentence.max_seq_length(folder) or read.encoder.max_length
    rows = [[tokenizer.cls_id, *encoded.ids[: longest - 2], tokenizer.sep_id] for encoded in tokenizer.encode_batch(texts)]
    length = np.array([len(row) for row in rows], np.int32)
    ids = np.array([row + [tokenizer.pad_id] * (length.max() - len(row)) for row in rows], np.int32)
    embed = jax.jit(Embedder(read.encoder, read.embedder).embed)
    return np.asarray(embed(read.params, jnp.asarray(ids), jnp.asarray(length)))


def test_round_trip_is_exact(folder, tmp_path):
    """T26."""
    read = hf.read_folder(folder)
    embedder = EmbedderConfig("mean", projection=6, normalize=True)
    assert (read.encoder, read.embedder, read.tokenizer) == (ENCODER, embedder, folder)
    equal(read.params, random_params(embedder))
    assert load_tokenizer(read.tokenizer).sha256 == TOKENIZER.sha256
    assert sentence.max_seq_length(folder) == 12
    hf.write_folder(tmp_path / "again", read.encoder, read.embedder, read.params, TOKENIZER, TEMPLATE)
    for file in folder.rglob("*.*"):
        assert file.read_bytes() == (tmp_path / "again" / file.relative_to(folder)).read_bytes(), file.name


@pytest.mark.parametrize("tied", [True, False])
def test_a_masked_language_model_round_trips(tied, tmp_path):
    config = EncoderConfig(**{**vars(ENCODER), "tied_output": tied})
    params = random_params(head=config)
    hf.write_folder(tmp_path / "m", config, EmbedderConfig(), params, TOKENIZER, TEMPLATE)
    read = hf.read_folder(tmp_path / "m")
    assert read.encoder == config and read.embedder == EmbedderConfig()
    equal(read.params, params)


def test_shards_half_precision_and_old_names_are_read(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    (tmp_path / "m" / "model.safetensors").unlink()
    parts = {"a.safetensors": {}, "b.safetensors": {}}
    for i, (name, tensor) in enumerate(tensors.items()):
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        parts["ab"[i % 2] + ".safetensors"]["bert." + old] = tensor.astype(ml_dtypes.bfloat16 if i % 3 else np.float16)
    parts["a.safetensors"]["bert.pooler.dense.bias"] = np.zeros(8, np.float32)
    for name, part in parts.items():
        save_file(part, tmp_path / "m" / name)
    weight_map = {name: part for part, names in parts.items() for name in names}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    read, exact = hf.read_folder(tmp_path / "m"), hf.read_folder(folder)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(read.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2**-8), read.params, exact.params)


def change(name, **values):
    def apply(folder):
        path = folder / name
        config = json.loads(path.read_text()) | values
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))

    return apply


def reweigh(edit):
    def apply(folder):
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


def remodule(edit):
    def apply(folder):
        modules = json.loads((folder / "modules.json").read_text())
        (folder / "modules.json").write_text(json.dumps(edit(modules)))

    return apply


def only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


WORD, BIAS = "embeddings.word_embeddings.weight", "encoder.layer.1.output.dense.bias"
ACTIVATION = "torch.nn.modules.activation.Tanh"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "is not a folder"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json does not exist"),
        (change("config.json", model_type="distilbert"), "model_type 'distilbert' is not supported; can be read: bert, roberta, electra"),
        (change("config.json", model_type="deberta-v2"), "model_type 'deberta-v2' is not supported"),
        (change("config.json", model_type="t5", hidden_size=None), "model_type 't5' is not supported"),
        (change("config.json", model_type="xlm-roberta"), "model_type 'xlm-roberta' is not supported"),
        (change("config.json", model_type=None), "model_type None is not supported"),
        (change("config.json", model_type="roberta", pad_token_id=-1), "pad_token_id -1 says not where positions start"),
        (change("config.json", model_type="roberta", pad_token_id=19), "max_length is 0; expected at least 1"),
        (change("config.json", model_type="electra", embedding_size=6), r"missing tensors: embeddings_project\.bias, embeddings_project"),
        (change("config.json", hidden_act="gelu_new"), "hidden_act 'gelu_new'"),
        (change("config.json", position_embedding_type="relative_key"), "position_embedding_type 'relative_key'"),
        (change("config.json", hidden_size=None), "lacks hidden_size"),
        (change("config.json", num_attention_heads=3), "8 does not divide into 3 heads"),
        (change("config.json", num_hidden_layers=1), r"no place for: encoder\.layer\.1\."),
        (only_pickle, r"pytorch_model\.bin, a pickle, which can run any code .* convert"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"holds no model\.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"nothing of the kind"), "cannot be read as safetensors"),
        (reweigh(lambda tensors: tensors.pop(BIAS)), rf"missing tensors: {BIAS}$"),
        (reweigh(lambda tensors: tensors.update({WORD: np.zeros((15, 8), np.float32)})), r"\[15, 8\]; expected \[16, 8\]"),
        (reweigh(lambda tensors: tensors.update({BIAS: np.zeros(8, np.int8)})), "is int8"),
        (change("1_Pooling/config.json", pooling_mode_max_tokens=True), r"pooling mean \+ max is not supported"),
        (change("1_Pooling/config.json", pooling_mode="lasttoken"), "pooling lasttoken is not supported"),
        (change("2_Dense/config.json", activation_function=ACTIVATION), "activation Tanh"),
        (remodule(lambda modules: modules[:2] + modules[3:]), "cannot express the modules Transformer, Pooling, LayerNorm, Normalize"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(folder, tmp_path, spoil, message):
    shutil.copytree(folder, tmp_path / "m")
    spoil(tmp_path / "m")
    with pytest.raises(InputError, match=message):
        hf.read_folder(tmp_path / "m")


def test_a_folder_without_modules_is_cls_and_has_no_length(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "m")
    for name in ("modules.json", "sentence_bert_config.json"):
        (tmp_path / "m" / name).unlink()
    assert hf.read_folder(tmp_path / "m").embedder == EmbedderConfig() and sentence.max_seq_length(tmp_path / "m") is None


def test_first_k_pooling_is_read_again_and_refused_by_sentence_transformers(tmp_path):
    config = EmbedderConfig("first", first_k=3, normalize=True)
    hf.write_folder(tmp_path / "m", ENCODER, config, random_params(), TOKENIZER, TEMPLATE)
    assert hf.read_folder(tmp_path / "m").embedder == config
    library = pytest.importorskip("sentence_transformers")
    with pytest.raises(ValueError, match="FirstTokensPooling"):
        library.SentenceTransformer(str(tmp_path / "m"), device="cpu")


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError, match="tokenizer has 17 tokens, the encoder 16"):
        hf.write_folder(tmp_path / "m", ENCODER, EmbedderConfig(), random_params(), wordpiece_of(17), TEMPLATE)

    def fail(folder, max_length=None):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        broken = SimpleNamespace(vocab_size=13, pad_id=0, save=fail)
        hf.write_folder(tmp_path / "m", ENCODER, EmbedderConfig(), random_params(), broken, TEMPLATE)
    assert not list(tmp_path.iterdir())


def wordpiece_of(size):
    return wordpiece({token: i for i, token in enumerate((*SPECIALS, *(f"w{i}" for i in range(size - 5))))}, lowercase=True)


@pytest.mark.parametrize("head", [None, ENCODER, UNTIED], ids=["encoder", "with MLM head", "with an untied one"])
def test_transformers_gives_the_same_states(tmp_path, head):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    params = random_params(head=head)
    hf.write_folder(tmp_path / "m", head or ENCODER, EmbedderConfig(), params, TOKENIZER, TEMPLATE)
    kind = transformers.AutoModelForMaskedLM if head else transformers.AutoModel
    model = kind.from_pretrained(tmp_path / "m").eval()
    rng = np.random.default_rng(1)
    ids, length = rng.integers(0, 16, (4, 9)), np.array([9, 3, 5, 2])
    mask = np.arange(9) < length[:, None]
    with torch.no_grad():
        out = model(torch.tensor(ids), attention_mask=torch.tensor(mask.astype(np.int64)), output_hidden_states=True)
    theirs = np.stack([states.numpy() for states in out.hidden_states])
    run = jax.jit(lambda p: bert.encode(ENCODER, p, jnp.asarray(ids.astype(np.int32)), jnp.asarray(length), collect=True).all)
    states = run(params["encoder"])
    np.testing.assert_allclose(np.asarray(states)[:, mask], theirs[:, mask], atol=1e-5)
    if head:
        table, bias = heads.mlm_table(params["encoder"], params["mlm_head"])
        logits = heads.mlm_transform(ENCODER, params["mlm_head"], states[-1]) @ table.T + bias
        np.testing.assert_allclose(np.asarray(logits)[mask][:, :16], out.logits.numpy()[mask], atol=1e-4)


def test_transformers_loads_the_tokenizer(folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == [2, *TOKENIZER.encode(text).ids.tolist(), 3]
    assert theirs.pad_token_id == 0 and theirs.model_max_length == 12


def test_sentence_transformers_gives_the_same_vectors(folder):
    pytest.importorskip("torch")
    package = pytest.importorskip("sentence_transformers")
    model = package.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(ours(folder, TEXTS), model.encode(TEXTS), atol=1e-5)
    assert model.prompts == {"query": "query: ", "document": "passage: "} and model.max_seq_length == 12
    np.testing.assert_allclose(ours(folder, ["query: dense"]), model.encode_query(["dense"]), atol=1e-5)
    np.testing.assert_allclose(ours(folder, ["passage: dense"]), model.encode_document(["dense"]), atol=1e-5)
