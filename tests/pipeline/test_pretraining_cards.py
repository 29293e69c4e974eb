"""Every pre-training card runs at smoke size: all parts of its loss are logged, all its parameters kept, the encoder exported alone."""

import dataclasses
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import ROOT, finish, once, start_together
from safetensors.numpy import load_file

from denseir_jax.core.command import execute, run_command
from denseir_jax.core.config import parse
from denseir_jax.core.errors import InputError
from denseir_jax.core.events import read
from denseir_jax.pipeline.stages.pretrain import PretrainConfig, stage
from denseir_jax.search.retriever import load_retriever

pytestmark = pytest.mark.usefixtures("module_on_one_device")
FOLDER = ROOT / "configs" / "pretrain"
CARDS = sorted(path.stem for path in FOLDER.glob("*.py"))
BOTTLENECK = {"head_mlm", "head_mlm_accuracy", "late_mlm", "late_mlm_accuracy"}
DECODER = {"mlm", "mlm_accuracy", "decoder", "decoder_accuracy"}
PARTS = {
    "mlm": {"mlm", "mlm_accuracy"},
    "cocondenser": BOTTLENECK | {"contrastive", "accuracy", "negatives"},
    "seed": DECODER,
    "optimus": DECODER,
    "retromae": DECODER,
    "dupmae": DECODER | {"bow"},
    "bag_of_words": {"mlm", "mlm_accuracy", "bow"},
    "mixture": {"condenser/head_mlm", "bow/mlm", "bow/bow", "condenser/loss", "bow/loss"},
    "ict": {"nll_removed", "accuracy_removed", "nll_kept", "accuracy_kept"},
}
HEADS = {
    "mlm": {"mlm_head"},
    "bag_of_words": {"mlm_head"},
    "mixture": {"mlm_head", "condenser"},
    "ict": set(),
    "seed": {"mlm_head", "decoder"},
    "optimus": {"mlm_head", "decoder"},
    "retromae": {"mlm_head", "two_stream"},
    "dupmae": {"mlm_head", "two_stream"},
    "lexmae": {"mlm_head", "head", "head_mlm_head"},
}


def card(name: str) -> PretrainConfig:
    spec = importlib.util.spec_from_file_location("card", FOLDER / f"{name}.py")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return parse(PretrainConfig, module.get_config("smoke"))


def small(name: str, texts: Path) -> PretrainConfig:
    config = card(name)
    prepare = dataclasses.replace(config.prepare, workers=1, vocab_size=200)
    return dataclasses.replace(config, corpus=f"jsonl:{texts}", prepare=prepare)


def made_card(name: str, made: Path, texts: Path) -> Path:
    """The card's run at smoke size, made once."""
    return once(made, f"card_{name}", lambda folder: execute(stage, dataclasses.replace(small(name, texts), memory_budget=2.0), folder))


@pytest.mark.parametrize("name", CARDS)
def test_card_runs(name: str, made: Path, texts: Path) -> None:
    run = made_card(name, made, texts)
    metrics = json.loads((run / "metrics.json").read_text())
    parts = PARTS.get(name, BOTTLENECK)
    assert metrics["step"] == 20
    assert parts <= set(metrics) and all(math.isfinite(metrics[part]) for part in parts)
    leaves = load_file(run / "params.safetensors")
    assert {leaf.split("/")[0] for leaf in leaves} == {"encoder", *HEADS.get(name, {"mlm_head", "head"})}
    exported = load_file(run / "encoder" / "model.safetensors")
    assert not [tensor for tensor in exported if "decoder" in tensor or "head" in tensor or "predictions" in tensor]
    assert load_retriever(f"run:{run}").params_sha256 == metrics["retriever_sha256"]
    assert [line["step"] for line in read(run / "events.jsonl") if line["kind"] == "train"] == [5, 10, 15, 20]


def test_warm_start_takes_backbone_and_head(made: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """coCondenser starts from a Condenser run, head included."""
    condenser = made_card("condenser", made, texts)
    given = load_file(condenser / "params.safetensors")
    config = dataclasses.replace(small("cocondenser", texts), init_from=f"run:{condenser}", steps=1, memory_budget=2.0)
    slow = dataclasses.replace(config.optimizer, lr=1e-12, weight_decay=0.0)
    execute(stage, dataclasses.replace(config, optimizer=slow), tmp_path / "cocondenser")
    leaves = load_file(tmp_path / "cocondenser" / "params.safetensors")
    assert set(leaves) == set(given)
    for leaf, value in given.items():
        np.testing.assert_allclose(leaves[leaf], value, atol=1e-9, err_msg=leaf)
    said = capsys.readouterr().err
    assert "takes encoder, head, mlm_head" in said and "batch 16 in 1 part(s) (chosen to fit 2 GiB)" in said


def test_spans_meet_across_processes(texts: Path, tmp_path: Path) -> None:
    """coCondenser's loss over the spans of two processes with two devices each is that of one device."""
    keys = {"corpus": f"jsonl:{texts}", "prepare.vocab_size": 200, "steps": 4, "cadence.log": 1, "optimizer.lr": 1e-5}
    arguments = ["--config", f"{FOLDER}/cocondenser.py:smoke", *(f"--config.{key}={value}" for key, value in keys.items())]
    assert run_command(stage, ["launch/pretrain.py", *arguments, f"--workdir={tmp_path / 'one'}"]) == 0
    for process in start_together("pretrain", *arguments, "--workdir", tmp_path / "four", processes=2, devices=2):
        finish(process)
    one, four = ([line for line in read(tmp_path / name / "events.jsonl") if line["kind"] == "train"] for name in ("one", "four"))
    assert len(one) == len(four) == 4
    for part in ("contrastive", "head_mlm", "late_mlm", "loss"):
        np.testing.assert_allclose([line[part] for line in four], [line[part] for line in one], rtol=1e-6, err_msg=part)
    assert one[0]["negatives"] == four[0]["negatives"] == 30  # of 16 documents: all spans but the pair itself


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("condenser", "objective.skip_from=9", "skip_from=9 is outside the encoder"),
        ("condenser", "objective.mask.rate=1.5", "mask rate 1.5 is outside (0, 1]"),
        ("retromae", "objective.decoder_mask.rate=0.0", "mask rate 0.0 is outside (0, 1]"),
        ("seed", "objective.decoder.window=0", "window=0 must be at least 1"),
        ("seed", "objective.decoder.heads=5", "does not divide into 5 heads"),
        ("simlm", "objective.n_head_layers=7", "copies the encoder's last 7 layers; it has 2"),
        ("cot_mae", "objective.pairs=None", "needs pairs='random' or 'nearby'"),
        ("ict", "batch_size=1", "leaves nothing to compare a row with"),
        ("retromae", "objective.name=mlm", "for another one take its own recipe card"),
    ],
)
def test_bad_settings_are_one_line(name: str, key: str, words: str, texts: Path, tmp_path: Path, capsys) -> None:
    arguments = [f"--config.corpus=jsonl:{texts}", "--config.prepare.vocab_size=200", f"--config.{key}", f"--workdir={tmp_path / 'run'}"]
    assert run_command(stage, ["launch/pretrain.py", f"--config={FOLDER}/{name}.py:smoke", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error.splitlines()[-1] and "Traceback" not in error
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "prepare").exists(), "it was seen before any text was read"


def test_none_can_be_said_on_the_command_line(tmp_path: Path, capsys) -> None:
    """SEED without a window, from SEED's card; where None has no meaning it is refused."""
    seed = ["launch/pretrain.py", f"--config={FOLDER}/seed.py:smoke", f"--workdir={tmp_path / 'run'}", "--print_config"]
    assert run_command(stage, [*seed, "--config.objective.decoder.window=None"]) == 0
    assert json.loads(capsys.readouterr().out)["objective"]["decoder"]["window"] is None
    for key, words in (
        ("objective.decoder.layers", "layers=None has the wrong type"),
        ("objective.decoder.widow", "did you mean 'window'"),
    ):
        assert run_command(stage, [*seed, f"--config.{key}=None"]) == 2
        assert words in capsys.readouterr().err


def test_a_corpus_without_pairs_is_refused(tmp_path: Path) -> None:
    corpus = tmp_path / "short.jsonl"
    corpus.write_text("".join(json.dumps({"_id": str(n), "text": f"one sentence number {n}"}) + "\n" for n in range(8)))
    config = card("cocondenser")
    config = dataclasses.replace(config, corpus=f"jsonl:{corpus}", prepare=dataclasses.replace(config.prepare, workers=1))
    with pytest.raises(InputError, match="none of 8 documents has two spans; prepare with split=spans"):
        execute(stage, config, tmp_path / "run")
