import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from denseir_jax.core import artifacts, signals
from denseir_jax.core.command import execute, run_command
from denseir_jax.core.errors import InputError, Stopped
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import load_tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.pipeline.stages.prepare import PrepareConfig, stage

ROOT = Path(__file__).parents[2]
CARD = str(ROOT / "configs/prepare/corpus.py")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(1, 8))) for _ in range(200)]
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    with open(path, "w") as stream:
        for i in range(90):
            text = " ".join(" ".join(rng.choice(words, rng.integers(3, 12))).capitalize() + "." for _ in range(rng.integers(0, 8)))
            stream.write(json.dumps({"id": f"ü{i}", "title": f"T{i % 5}" if i % 3 else "", "text": text if i != 11 else ""}) + "\n")
    return path


def settings(corpus: Path, **changes) -> PrepareConfig:
    made = {"corpus": f"jsonl:{corpus}", "vocab_size": 150, "split": "blocks", "block_length": 24, "workers": 1, "chunk": 10}
    return PrepareConfig(**{**made, **changes})


def hashes(folder: Path) -> dict[str, str]:
    """Every byte of what a run leaves as its artifacts, and the identity that later stages compare."""
    manifest = artifacts.finished_run(folder, ["prepare"])
    files = sorted(file for name in ("tokens", "tokenizer") for file in (folder / name).iterdir())
    return {"manifest": manifest["sha256"], **{file.name: artifacts.file_sha256(file) for file in files}}


@pytest.fixture(scope="module")
def plain(corpus, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "run"
    execute(stage, settings(corpus), folder)
    return folder


def command(corpus: Path, folder: Path, *more: str) -> list[str]:
    keys = {"corpus": f"jsonl:{corpus}", "vocab_size": 150, "block_length": 24, "workers": 1, "chunk": 10}
    keys |= {"template.query_length": 32, "template.passage_length": 128}
    return [
        sys.executable, str(ROOT / "launch/prepare.py"), "--config", f"{CARD}:smoke", "--workdir", str(folder),
        *(f"--config.{key}={value}" for key, value in keys.items()), *more,
    ]  # fmt: skip


def start(argv: list[str], **environment: str) -> subprocess.Popen:
    return subprocess.Popen(argv, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.parametrize("changes", [{"workers": 2}, {"chunk": 7}, {"chunk": 1000}])
def test_bytes_depend_on_neither_workers_nor_chunks(corpus, plain, tmp_path, changes):
    execute(stage, settings(corpus, **changes), tmp_path / "run")
    assert hashes(tmp_path / "run") == hashes(plain)
    assert not (tmp_path / "run" / "parts").exists()


@pytest.mark.parametrize("workers, point", [("1", "prepare_part:4"), ("2", "prepare_part:2")])
def test_killed_and_started_again_gives_the_same_bytes(corpus, plain, tmp_path, workers, point):
    argv = command(corpus, tmp_path / "run", f"--config.workers={workers}")
    first = start(argv, DENSEIR_FAILPOINT=point)
    first.communicate(timeout=120)
    assert first.returncode == -signal.SIGKILL
    kept = list((tmp_path / "run" / "parts").rglob("[0-9]*.npz"))
    assert 1 <= len(kept) < 9 and not (tmp_path / "run" / "manifest.json").exists()
    second = start(argv)
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert hashes(tmp_path / "run") == hashes(plain)
    assert json.loads(out.splitlines()[-1])["metrics"]["documents"] == 90


def test_workers_end_with_a_killed_parent(corpus, tmp_path):
    """A worker waits for work for ever if nobody tells it that its parent is gone: its standard error would stay open."""
    first = start(command(corpus, tmp_path / "run", "--config.workers=2"), DENSEIR_FAILPOINT="prepare_part:1")
    first.communicate(timeout=60)  # returns when every holder of the pipe is gone
    assert first.returncode == -signal.SIGKILL


def test_finished_parts_are_not_made_again(corpus, plain, tmp_path, monkeypatch):
    from denseir_jax.pipeline.stages import part_workers

    made: list[str] = []
    write = part_workers.write_part

    def spy(path, *rest):
        if len(made) == 3:
            signals._received.append(signal.SIGTERM)
        made.append(path.name)
        write(path, *rest)

    monkeypatch.setattr(part_workers, "write_part", spy)
    monkeypatch.setattr(signals, "_received", [])
    with pytest.raises(Stopped, match="SIGTERM"):
        execute(stage, settings(corpus), tmp_path / "run")
    assert made == [f"{i:06d}.npz" for i in range(4)]
    signals._received.clear()
    made[:] = []
    monkeypatch.setattr(part_workers, "write_part", lambda path, *rest: (made.append(path.name), write(path, *rest)))
    execute(stage, settings(corpus), tmp_path / "run")
    assert made == [f"{i:06d}.npz" for i in range(4, 9)]
    assert hashes(tmp_path / "run") == hashes(plain)


def test_the_manifest_tells_what_was_made(corpus, plain):
    manifest = artifacts.finished_run(plain)
    store = TokenStore.open(plain)
    lengths = np.diff(store.offsets)
    texts = [json.loads(line) for line in corpus.read_text().splitlines()]
    empty = sum(not (row["text"] or row["title"]) for row in texts)
    assert manifest["counts"]["documents"] == 90 and manifest["counts"]["empty_documents"] == empty > 0
    assert manifest["counts"]["tokens"] == lengths.sum() and manifest["counts"]["pieces"] == store.n_pieces
    assert manifest["share_truncated"] == pytest.approx((lengths > 126).mean())
    edges = manifest["length_histogram"]["from"]
    expected = [int(((lengths >= a) & (lengths < b)).sum()) for a, b in zip(edges, [*edges[1:], 10**9], strict=True)]
    assert manifest["length_histogram"]["documents"] == expected
    tokenizer = load_tokenizer(plain)
    assert manifest["tokenizer_sha256"] == tokenizer.sha256 == store.tokenizer_sha256
    assert store.template == TextTemplate() and store.ids[3] == "ü3" and store.row_of["ü89"] == 89
    template = TextTemplate()
    for row in (1, 2, 50):
        title, text = texts[row]["title"], texts[row]["text"]
        whole = f"{title}{template.title_join if title and text else ''}{text}"
        assert store.document(row)[0].tolist() == tokenizer.encode(whole).ids.tolist()


def test_a_given_tokenizer_is_used_and_recorded(corpus, plain, tmp_path):
    config = settings(corpus, tokenizer=str(plain / "tokenizer" / "vocab.txt"))
    execute(stage, config, tmp_path / "run")
    manifest = artifacts.finished_run(tmp_path / "run")
    assert manifest["inputs"]["tokenizer"] == "sha256:" + load_tokenizer(plain).sha256
    assert {**hashes(tmp_path / "run"), "manifest": ""} == {**hashes(plain), "manifest": ""}


def test_queries_of_the_train_split_can_join_the_tokenizer(tmp_path):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d", "title": "", "text": "alpha beta"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "a", "text": "zeta"}\n{"_id": "b", "text": "omega"}\n')
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\na\td\t1\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nb\td\t1\n")
    config = PrepareConfig(corpus=f"beir:{folder}", vocab_size=100, workers=1, train_queries=True)
    execute(stage, config, tmp_path / "run")
    tokenizer = load_tokenizer(tmp_path / "run")
    assert tokenizer.unk_id not in tokenizer.encode("zeta").ids
    assert tokenizer.unk_id in tokenizer.encode("m").ids  # from the test query alone


def test_bad_rows_are_refused_or_counted(corpus, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(corpus.read_text() + "not json\n")
    with pytest.raises(InputError, match=r"bad.jsonl:91: "):
        execute(stage, settings(bad), tmp_path / "refused")
    metrics = execute(stage, settings(bad, on_bad_row="skip"), tmp_path / "skipped")
    assert metrics["documents"] == 90 and sum(metrics["skipped_rows"].values()) == 1


@pytest.mark.parametrize(
    "key, message",
    [
        ("corpus=", "corpus is not set"),
        ("corpus=jsonl:/nowhere/x.jsonl", "does not exist"),
        ("tokenizer=/nowhere", "does not exist"),
        ("block_length=2", "block_length"),
        ("split=block", "did you mean 'blocks'"),
        ("train_queries=True", "has passages but no queries"),
    ],
)
def test_what_cannot_be_is_one_line(corpus, tmp_path, capsys, key, message):
    argv = command(corpus, tmp_path / "run", f"--config.{key}")[1:]
    assert run_command(stage, argv) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1] and lines[-1].startswith("error: ")


@pytest.mark.parametrize("size", ["smoke", "tiny", "small", "base"])
def test_every_size_of_the_card_parses(size, capsys):
    argv = ["prepare.py", "--config", f"{CARD}:{size}", "--print_config"]
    assert run_command(stage, argv) == 0
    config = json.loads(capsys.readouterr().out)
    assert config["split"] == "blocks" and config["block_length"] == config["template"]["passage_length"]


def test_another_config_in_the_same_folder_is_refused(corpus, plain):
    with pytest.raises(InputError, match="block_length: 24 there, 32 here"):
        execute(stage, settings(corpus, block_length=32), plain)
    assert execute(stage, settings(corpus, workers=2, chunk=3), plain)["documents"] == 90  # operational: found finished


class Pipe:
    """Commands with `content` on standard input, in this process."""

    def __init__(self, folder: Path, monkeypatch, capsys):
        self.argv = command(Path("-"), folder)[1:]
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, content: bytes | None, code: int) -> str:
        stdin = None if content is None else io.TextIOWrapper(io.BytesIO(content))
        self.monkeypatch.setattr(sys, "stdin", stdin)
        assert run_command(stage, self.argv) == code
        return self.capsys.readouterr().err


@pytest.fixture
def pipe(tmp_path, monkeypatch, capsys):
    return Pipe(tmp_path / "run", monkeypatch, capsys)


def test_standard_input_put_right_is_read_anew(corpus, plain, tmp_path, pipe):
    good = corpus.read_bytes()
    for bad, said in ((good + good.splitlines()[0], "standard input:91: duplicate id"), (b"", "standard input holds no passage")):
        err = pipe(bad, 2)
        assert err.startswith(f"error: {said}") and str(tmp_path) not in err and err.count("\n") == 1
        assert not (tmp_path / "run" / "parts").exists()
    pipe(good, 0)
    assert {**hashes(tmp_path / "run"), "manifest": ""} == {**hashes(plain), "manifest": ""}


def test_bad_input_found_after_parts_were_written_takes_them_along(corpus, plain, tmp_path, pipe):
    pipe.argv += [f"--config.tokenizer={plain / 'tokenizer'}"]  # nothing is read before the encoding
    first, *rest = corpus.read_bytes().splitlines(keepends=True)
    other = first.replace(b'"text": "', b'"text": "changed ')
    assert "standard input:91: not JSON" in pipe(b"".join([other, *rest, b"broken"]), 2)
    pipe(b"".join([first, *rest]), 0)
    files = hashes(plain)
    assert {**hashes(tmp_path / "run"), "manifest": ""} == {**files, "manifest": ""}


def test_a_stopped_run_keeps_standard_input_and_says_so(corpus, plain, tmp_path, pipe, monkeypatch):
    from denseir_jax.pipeline.stages import part_workers

    write = part_workers.write_part
    monkeypatch.setattr(signals, "_received", [])
    monkeypatch.setattr(part_workers, "write_part", lambda *task: (write(*task), signals._received.append(signal.SIGTERM)))
    pipe(corpus.read_bytes(), 75)
    monkeypatch.undo()
    assert "the standard input of the first start" in pipe(b"something else", 0)
    assert {**hashes(tmp_path / "run"), "manifest": ""} == {**hashes(plain), "manifest": ""}


def test_a_finished_run_does_not_pretend_to_know_standard_input(corpus, tmp_path, pipe):
    pipe(corpus.read_bytes(), 0)
    err = pipe(b"something else", 0)
    assert "standard input is not read again, nor compared" in err and "already finished" in err


def test_closed_standard_input_is_one_line(pipe):
    err = pipe(None, 2)
    assert err.startswith("error: standard input is closed") and err.count("\n") == 1


@pytest.mark.parametrize("name", ["tokens.bin", "ids.txt", "pieces.npy"])
def test_what_was_lost_is_made_again(corpus, plain, tmp_path, name, capsys):
    shutil.copytree(plain, tmp_path / "run")
    (tmp_path / "run" / "tokens" / name).unlink()
    execute(stage, settings(corpus), tmp_path / "run")
    assert hashes(tmp_path / "run") == hashes(plain)
    assert f"tokens/{name} is gone" in capsys.readouterr().err


def test_many_unknown_tokens_are_said(corpus, plain, tmp_path, capsys):
    metrics = execute(stage, settings(corpus, vocab_size=8), tmp_path / "run")
    store = TokenStore.open(tmp_path / "run")
    ids = np.concatenate([store.document(row)[0] for row in range(store.n_documents)])
    assert metrics["share_unknown"] == pytest.approx((ids == store.special_ids.unk).mean()) and metrics["share_unknown"] > 0.1
    assert f"warning: {metrics['share_unknown']:.0%} of the tokens are [UNK]" in capsys.readouterr().err
    assert artifacts.finished_run(plain)["share_unknown"] < 0.1


@pytest.mark.parametrize("key, value", [("vocab_size", 9999999999), ("workers", 10**6), ("vocab_size", 7), ("short_share", float("nan"))])
def test_impossible_numbers_are_refused(key, value):
    with pytest.raises(ValueError, match=f"{key} is {value}"):
        PrepareConfig(**{key: value})


def test_a_damaged_part_is_one_line(corpus, tmp_path, monkeypatch):
    from denseir_jax.pipeline.stages import part_workers

    write = part_workers.write_part

    def torn(path, *rest):
        write(path, *rest)
        path.write_bytes(path.read_bytes()[:100])

    monkeypatch.setattr(part_workers, "write_part", torn)
    with pytest.raises(InputError, match=r"the part .*000000\.npz cannot be read"):
        execute(stage, settings(corpus), tmp_path / "run")
