"""RoBERTa and ELECTRA: the states that transformers gives, folders that come back exactly, and a training run that starts from one."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

from denseir_jax.core.command import execute
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer, load_tokenizer
from denseir_jax.models import bert, heads, hf
from denseir_jax.models.embedder import Embedder, EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.mlm import MlmConfig
from denseir_jax.objectives.retromae import RetroMaeConfig
from denseir_jax.objectives.seed import SeedConfig
from denseir_jax.parallel import mesh, sharding
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.pipeline.stages.pretrain import stage as pretrain
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.retriever import load_retriever
from denseir_jax.train.loop import Cadence

TEXTS = [
    "The bill passed on Tuesday would give farmers in the valley unlimited access to ground water.",
    "  It was, said Mayor Okafor, the driest   summer since records began; nobody doubted the Mayor.",
    "Unbelievers didn't believe the unbelievable: 東京 had snow in June.",
]
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 22,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.1,
}
KINDS = (
    "RobertaForMaskedLM",
    "RobertaModel",
    "untied RobertaForMaskedLM",  # and its padding token is 0
    "ElectraForPreTraining",
    "ElectraForMaskedLM",
    "wide ElectraModel",  # its embeddings as wide as its states: nothing is projected
)
TEMPLATE = TextTemplate(query_prefix="query: ", query_length=10, passage_length=20)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> Path:
    """A byte-level BPE as older RoBERTa folders hold it: vocab.json and merges.txt, <s> <pad> </s> <unk> first, <mask> last."""
    folder = tmp_path_factory.mktemp("bpe")
    trained = tokenizers.ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trained.train_from_iterator([TEXTS[0], *TEXTS] * 2, vocab_size=320, special_tokens=specials, show_progress=False)
    trained.save_model(str(folder))
    vocab = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({**vocab, "<mask>": len(vocab)}))
    return folder


def theirs(kind: str, vocab_size: int):
    """A small model of `transformers`, random in every parameter, LayerNorm and biases too."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    name = kind.rsplit(" ", 1)[-1]
    sizes = SIZES | {"vocab_size": vocab_size, "tie_word_embeddings": not kind.startswith("untied")}
    if name.startswith("Roberta"):
        pad = 0 if kind.startswith("untied") else 1
        config = transformers.RobertaConfig(**sizes, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=pad)
    else:
        config = transformers.ElectraConfig(**sizes, embedding_size=8 if kind.startswith("wide") else 6)
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    return model


@pytest.fixture(scope="module")
def folders(bpe, tmp_path_factory):
    """The model of a kind, and its folder as transformers saves it, with the tokenizer's two files beside it."""
    made = {}

    def folder(kind: str):
        if kind not in made:
            path = tmp_path_factory.mktemp("models") / "theirs"
            model = theirs(kind, load_tokenizer(bpe).vocab_size)
            model.save_pretrained(path)
            for file in bpe.iterdir():
                shutil.copy(file, path)
            made[kind] = model, path
        return made[kind]

    return folder


def padded(rng, pad: int, vocab: int):
    length = np.array([20, 3, 11, 1], np.int32)
    ids = rng.integers(5, vocab, (4, 20)).astype(np.int32)
    mask = np.arange(20) < length[:, None]
    return np.where(mask, ids, pad).astype(np.int32), length, mask


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_and_logits_are_those_of_transformers(kind, folders):
    torch = pytest.importorskip("torch")
    model, folder = folders(kind)
    read, pad = hf.read_folder(folder), model.config.pad_token_id
    ids, length, mask = padded(np.random.default_rng(1), pad, read.encoder.vocab_size)
    with torch.no_grad():
        out = model(torch.tensor(ids), attention_mask=torch.tensor(mask.astype(np.int64)), output_hidden_states=True)
    expected = np.stack([states.numpy() for states in out.hidden_states])
    run = jax.jit(lambda p: bert.encode(read.encoder, p, jnp.asarray(ids), jnp.asarray(length), collect=True).all)
    states = run(read.params["encoder"])
    np.testing.assert_allclose(np.asarray(states)[:, mask], expected[:, mask], atol=1e-5)
    assert ("mlm_head" in read.params) == ("MaskedLM" in kind)
    if "MaskedLM" in kind:
        assert ("table" in read.params["mlm_head"]) == kind.startswith("untied")
        table, bias = heads.mlm_table(read.params["encoder"], read.params["mlm_head"])
        logits = heads.mlm_transform(read.encoder, read.params["mlm_head"], states[-1]) @ table.T + bias
        np.testing.assert_allclose(np.asarray(logits)[mask][:, : read.encoder.vocab_size], out.logits.numpy()[mask], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_is_exact(kind, folders, tmp_path):
    """Every tensor that is read is written again under its name, and the whole is what transformers loads as the same model."""
    transformers = pytest.importorskip("transformers")
    model, folder = folders(kind)
    read, pad = hf.read_folder(folder), model.config.pad_token_id
    tokenizer = SimpleNamespace(vocab_size=read.encoder.vocab_size, pad_id=pad, save=lambda folder, max_length: None)
    hf.write_folder(tmp_path / "m", read.encoder, read.embedder, read.params, tokenizer, TEMPLATE)
    again = hf.read_folder(tmp_path / "m")
    assert again.encoder == read.encoder and jax.tree.structure(again.params) == jax.tree.structure(read.params)
    jax.tree.map(np.testing.assert_array_equal, again.params, read.params)
    loader = transformers.AutoModelForMaskedLM if "MaskedLM" in kind else transformers.AutoModel
    back, info = loader.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not info["unexpected_keys"] and all(name.startswith("pooler.") for name in info["missing_keys"])
    assert type(back).__name__ == kind.rsplit(" ", 1)[-1].replace("ForPreTraining", "Model")
    before = {name.removeprefix(f"{model.base_model_prefix}."): tensor for name, tensor in model.state_dict().items()}
    unread = ("pooler.", "lm_head.bias") if kind.startswith("untied") else ("pooler.",)  # that of the output table is read
    for name, tensor in back.state_dict().items():
        if not name.startswith(unread):
            np.testing.assert_array_equal(tensor, before[name.removeprefix(f"{model.base_model_prefix}.")], err_msg=name)
    same = [*SIZES, "layer_norm_eps", "type_vocab_size", "pad_token_id", "tie_word_embeddings", "model_type"]
    assert all(getattr(back.config, key) == getattr(model.config, key) for key in same)


def test_longest_text_leaves_the_offset_out(folders, bpe):
    read = hf.read_folder(folders("RobertaModel")[1])
    assert (read.encoder.architecture, read.encoder.position_offset, read.encoder.max_length) == ("roberta", 2, 20)
    assert read.encoder.types == 1 and read.encoder.eps == 1e-5
    assert read.params["encoder"]["embeddings"]["position"].shape == (22, 8)
    with pytest.raises(ValueError, match="21 tokens do not fit an encoder of max_length 20"):
        bert.encode(read.encoder, read.params["encoder"], jnp.ones((1, 21), jnp.int32), jnp.array([21]))
    origin = f"hf:{folders('RobertaModel')[1]}"
    assert load_retriever(origin, TEMPLATE).query.embedder.encoder == read.encoder
    with pytest.raises(InputError, match=r"the template asks for 21 tokens; .* has 20 positions"):
        load_retriever(origin, dataclasses.replace(TEMPLATE, passage_length=21))


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    encoded = tokenizer.encode(text)
    bounds = [*np.flatnonzero(encoded.word_start).tolist(), len(encoded.ids)]
    return [text[encoded.offsets[a, 0] : encoded.offsets[b - 1, 1]] for a, b in itertools.pairwise(bounds)]


def test_word_starts_of_text_with_spaces(bpe):
    """A word is cut into several tokens, and only the tokenizer's words say where; blanks beyond the one that a word takes are apart."""
    tokenizer = load_tokenizer(bpe)
    plain = "  farmers unbelievable   driest 東京 summer\n nobody "
    words = [word for word in words_of(tokenizer, plain) if word.strip()]
    assert words == plain.split() and len(tokenizer.encode(plain).ids) > 2 * len(words)
    said = [word for word in words_of(tokenizer, TEXTS[1]) if word.strip()]
    assert said[:9] == ["It", "was", ",", "said", "Mayor", "Okafor", ",", "the", "driest"]
    assert words_of(tokenizer, "didn't <mask>")[-1] == "<mask>"


def test_tokenizer_round_trip(bpe, folders, tmp_path):
    """Two files, transformers' own reading of them, and what is written after a run: the same ids."""
    transformers = pytest.importorskip("transformers")
    tokenizer = load_tokenizer(bpe)
    assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.mask_id == tokenizer.vocab_size - 1
    mask = tokenizers.AddedToken("<mask>", lstrip=True, special=True)
    own = transformers.RobertaTokenizer(vocab=str(bpe / "vocab.json"), merges=str(bpe / "merges.txt"), mask_token=mask)
    own.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "ours")
    written = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    readers = [load_tokenizer(tmp_path / name) for name in ("theirs", "ours")]
    assert readers[1].sha256 == tokenizer.sha256
    for text in [*TEXTS, " leading", "a <mask> b", "a </s>", "", "\n\n x"]:
        ids = own(text)["input_ids"]
        assert written(text)["input_ids"] == ids
        for reader in (tokenizer, *readers):
            encoded = reader.encode(text)
            assert [0, *encoded.ids.tolist(), 2] == ids
            words = own(text, add_special_tokens=False).word_ids()
            assert encoded.word_start[1:].tolist() == [a is None or b != a for a, b in itertools.pairwise(words)]


def test_bad_merges_are_named(bpe, tmp_path):
    shutil.copy(bpe / "vocab.json", tmp_path)
    (tmp_path / "merges.txt").write_text("one\n")
    with pytest.raises(InputError, match=r"vocab\.json and merges\.txt cannot be read"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "vocab.json").write_text('{"a": 0, "<|endoftext|>": 1}')  # GPT-2's has no role for a first and a last token
    with pytest.raises(InputError, match="no special token </s>"):
        load_tokenizer(tmp_path)


def test_sentence_transformers_loads_the_export(folders, bpe, tmp_path):
    pytest.importorskip("torch")
    package = pytest.importorskip("sentence_transformers")
    read, tokenizer = hf.read_folder(folders("RobertaForMaskedLM")[1]), load_tokenizer(bpe)
    config = EmbedderConfig("mean", normalize=True)
    hf.write_folder(tmp_path / "m", read.encoder, config, {"encoder": read.params["encoder"]}, tokenizer, TEMPLATE)
    model = package.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert model.max_seq_length == 20
    retriever = load_retriever(f"hf:{tmp_path / 'm'}", dataclasses.replace(TEMPLATE, query_prefix="", query_length=20))
    np.testing.assert_allclose(encode_queries(retriever, dict(zip("abc", TEXTS, strict=True))), model.encode(TEXTS), atol=1e-5)


def test_the_projection_of_ance_is_read(folders, tmp_path):
    """Its folders hold Linear and LayerNorm beside the encoder under names of their own, and no modules.json."""
    shutil.copytree(folders("RobertaModel")[1], tmp_path / "m")
    rng = np.random.default_rng(2)
    head = {"embeddingHead.weight": (8, 8), "embeddingHead.bias": (8,), "norm.weight": (8,), "norm.bias": (8,)}
    head = {name: rng.normal(size=shape).astype(np.float32) for name, shape in head.items()}
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    save_file({f"roberta.{name}": tensor for name, tensor in tensors.items()} | head, tmp_path / "m" / "model.safetensors")
    read = hf.read_folder(tmp_path / "m")
    assert read.embedder == EmbedderConfig(projection=8)
    ids, length = jnp.asarray([[0, 9, 8, 2]], jnp.int32), jnp.asarray([4], jnp.int32)
    state = np.asarray(bert.encode(read.encoder, read.params["encoder"], ids, length).last)[:, 0]
    linear = state @ head["embeddingHead.weight"].T + head["embeddingHead.bias"]
    expected = (linear - linear.mean()) / np.sqrt(linear.var() + 1e-5) * head["norm.weight"] + head["norm.bias"]
    np.testing.assert_allclose(Embedder(read.encoder, read.embedder).embed(read.params, ids, length), expected, atol=1e-5)
    del head["norm.bias"]
    save_file({f"roberta.{name}": tensor for name, tensor in tensors.items()} | head, tmp_path / "m" / "model.safetensors")
    with pytest.raises(InputError, match=r"missing tensors: norm\.bias"):
        hf.read_folder(tmp_path / "m")


ROBERTA = EncoderConfig(300, hidden=8, layers=1, heads=2, intermediate=12, max_length=20, types=1, position_offset=2)
ELECTRA = EncoderConfig(300, hidden=8, layers=1, heads=2, intermediate=12, max_length=20, embedding=4, tied_output=False)


def test_positions_begin_after_the_offset():
    """The table without its first rows, in BERT's encoder, gives the same; so does a vector in a word's place."""
    params = bert.init_encoder(ROBERTA, jax.random.key(0))
    plain = dataclasses.replace(ROBERTA, position_offset=0)
    cut = {**params, "embeddings": {**params["embeddings"], "position": params["embeddings"]["position"][2:]}}
    ids, length = jnp.arange(14, dtype=jnp.int32).reshape(2, 7), jnp.asarray([7, 4], jnp.int32)
    np.testing.assert_array_equal(bert.encode(ROBERTA, params, ids, length).last, bert.encode(plain, cut, ids, length).last)
    vector = jnp.ones((2, 8))
    for normed in (False, True):
        one, two = (bert.embed_vector(c, p, vector, 7, normed) for c, p in ((ROBERTA, params), (plain, cut)))
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("config", [ROBERTA, ELECTRA], ids=["roberta", "electra"])
def test_every_parameter_has_a_place_on_the_mesh(config):
    shapes = jax.eval_shape(
        lambda key: {"encoder": bert.init_encoder(config, key), "mlm_head": heads.init_mlm_head(config, key)}, jax.random.key(0)
    )
    found = sharding.of_state(shapes, mesh.make(mesh.MeshConfig(data=2, fsdp=2, tensor=2)))
    if config is ELECTRA:
        assert tuple(found["encoder"]["embeddings"]["project"]["kernel"].spec) == ("fsdp", "tensor")
        assert shapes["encoder"]["embeddings"]["word"].shape == shapes["mlm_head"]["table"].shape == (384, 4)


def test_what_needs_words_as_wide_as_states_refuses_narrower_ones():
    context = Context(ELECTRA, EmbedderConfig(), 2, 3, 0, 4, 300, 8, 16, seed=0)
    with pytest.raises(ConfigError, match="shares a word table of 4 dimensions; expected the encoder's 8"):
        SeedConfig().build(context)
    with pytest.raises(ConfigError, match="retromae needs word embeddings as wide as states; this encoder's have 4 and 8 dimensions"):
        RetroMaeConfig().build(context)
    with pytest.raises(ConfigError, match="bottleneck='lexical' needs word embeddings as wide as states"):
        BottleneckConfig(bottleneck="lexical").build(context)
    assert BottleneckConfig().build(context) and MlmConfig().build(context)


def test_impossible_shapes_are_refused():
    with pytest.raises(ValueError, match="no architecture has both"):
        dataclasses.replace(ROBERTA, embedding=4)
    with pytest.raises(ValueError, match="position_offset=-1"):
        dataclasses.replace(ROBERTA, position_offset=-1)
    with pytest.raises(InputError, match="padding token has the id 0, the encoder numbers positions from 2; expected the id \\+ 1"):
        ROBERTA.check_pad_id(0)


def test_pretraining_starts_from_a_roberta_folder(folders, one_device, tmp_path):
    """The tokens are its tokenizer's; what comes out is a RoBERTa that transformers loads and that has moved from where it began."""
    _, folder = folders("RobertaForMaskedLM")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": str(i), "text": TEXTS[i % 3] + f" {i}"}) + "\n" for i in range(16)))
    config = PretrainConfig(
        corpus=f"jsonl:{corpus}",
        init_from=f"hf:{folder}",
        objective=BottleneckConfig(n_head_layers=1),
        encoder=EncoderConfig(300),
        prepare=PrepareConfig(workers=1, template=TextTemplate(query_length=8, passage_length=20)),
        steps=2,
        batch_size=8,
        cadence=Cadence(log=1, save=0),
        probe_size=4,
    )
    execute(pretrain, config, tmp_path / "run")
    before, after = hf.read_folder(folder), hf.read_folder(tmp_path / "run" / "encoder")
    ours = {"dropout", "attention_dropout", "dtype", "scan", "remat", "init_std"}
    assert {**vars(after.encoder), **dict.fromkeys(ours)} == {**vars(before.encoder), **dict.fromkeys(ours)}
    moved = np.abs(after.params["encoder"]["embeddings"]["position"] - before.params["encoder"]["embeddings"]["position"])
    assert moved[2:].max() > 0 and moved[2:].max() < 1e-2  # two steps at the card's rate
    assert load_tokenizer(tmp_path / "run" / "encoder").sha256 == load_tokenizer(folder).sha256
    transformers = pytest.importorskip("transformers")
    assert type(transformers.AutoModel.from_pretrained(tmp_path / "run" / "encoder")).__name__ == "RobertaModel"
    counted = dataclasses.replace(config.prepare, template=TextTemplate(query_length=8, passage_length=22))
    long = dataclasses.replace(config, prepare=counted)
    with pytest.raises(InputError, match="the template's longest text is 22 tokens; the encoder has 20 positions"):
        execute(pretrain, long, tmp_path / "long")
