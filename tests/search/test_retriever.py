import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.stats import binom
from tiny_retriever import TEMPLATE, WORDS, write_run

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.template import TextTemplate
from denseir_jax.evals.evaluation import evaluate
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.index import ExactIndex, to_ranking
from denseir_jax.search.retriever import load_retriever


def test_a_tied_run_comes_back(run_folder: Path) -> None:
    found = load_retriever(f"run:{run_folder}")
    assert found.query is found.passage and found.template == TEMPLATE and found.similarity == "cosine"
    assert found.query.embedder.config.pooling == "mean" and found.query.embedder.config.normalize
    assert found.params_sha256 == load_retriever(f"hf:{run_folder / 'encoder'}").params_sha256


def test_distances_are_known_to_who_reads_the_folder_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", similarity="l2")
    assert load_retriever(f"run:{folder}").similarity == load_retriever(f"hf:{folder / 'encoder'}", TEMPLATE).similarity == "l2"
    (folder / "encoder" / "denseir.json").unlink()
    assert load_retriever(f"hf:{folder / 'encoder'}", TEMPLATE).similarity == "l2"
    said = artifacts.read_json(folder / "encoder" / "config_sentence_transformers.json")
    assert said["similarity_fn_name"] == "euclidean"


def test_a_retriever_that_learnt_nothing_finds_as_chance_does(run_folder: Path) -> None:
    """R@k is near k / N where a query says nothing of its passage: within what chance leaves 0.01% outside of."""
    n, k = 200, 20
    retriever = load_retriever(f"run:{run_folder}")
    rng = np.random.default_rng(3)
    sides = [{f"{name}{i}": " ".join(rng.choice(WORDS, 6)) for i in range(n)} for name in "qd"]
    queries, answers = (encode_queries(retriever, side) for side in sides)
    scores, rows = ExactIndex(Embeddings.of_array(list(sides[1]), answers), "cosine").search(queries, k)
    ranking = to_ranking(list(sides[0]), list(sides[1]), scores, rows)
    found = evaluate(ranking, {f"q{i}": {f"d{i}": 1} for i in range(n)}, ["R@20"]).means("run")["R@20"]
    low, high = binom.interval(0.9999, n, k / n)
    assert low / n <= found <= high / n and high < n / 4


def test_an_untied_run_has_two_towers(run_folder: Path, untied_run_folder: Path) -> None:
    found, tied = load_retriever(f"run:{untied_run_folder}"), load_retriever(f"run:{run_folder}")
    pairs = zip(jax.tree.leaves(found.query.params), jax.tree.leaves(found.passage.params), jax.tree.leaves(tied.query.params), strict=True)
    for query, passage, same in pairs:
        assert (query == same).all() and (query != passage).any()
    assert found.params_sha256 != tied.params_sha256


def test_equal_parameters_have_equal_hashes_and_others_have_not(tmp_path: Path, run_folder: Path, other_run_folder: Path) -> None:
    first = load_retriever(f"run:{run_folder}").params_sha256
    assert load_retriever(f"run:{write_run(tmp_path / 'again')}").params_sha256 == first
    assert load_retriever(f"run:{other_run_folder}").params_sha256 != first


def test_exchanged_weights_are_refused(tmp_path: Path, run_folder: Path, other_run_folder: Path) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    shutil.copy(other_run_folder / "encoder" / "model.safetensors", tmp_path / "run" / "encoder" / "model.safetensors")
    with pytest.raises(InputError, match="the folder was changed or mixed"):
        load_retriever(f"run:{tmp_path / 'run'}")


def test_the_template_is_enforced_for_runs_and_given_for_published_models(tmp_path: Path, run_folder: Path) -> None:
    other = dataclasses.replace(TEMPLATE, query_prefix="")
    assert load_retriever(f"run:{run_folder}", TEMPLATE).template == TEMPLATE
    for origin in (f"run:{run_folder}", f"hf:{run_folder / 'encoder'}"):
        with pytest.raises(InputError, match="was trained with the template"):
            load_retriever(origin, other)
    shutil.copytree(run_folder / "encoder", tmp_path / "published")
    (tmp_path / "published" / "denseir.json").unlink()
    assert load_retriever(f"hf:{tmp_path / 'published'}", other).template == other
    with pytest.raises(InputError, match=r"asks for 128 tokens; .* has 64 positions"):
        load_retriever(f"hf:{tmp_path / 'published'}", TextTemplate(passage_length=128))


@pytest.mark.parametrize(
    ("origin", "message"), [("encoder", "expected run:DIR"), ("run:", "expected run:DIR"), ("hf:/no/such", "is not a folder")]
)
def test_what_is_no_retriever(origin: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_retriever(origin)


def test_a_run_without_a_retriever_is_refused(tmp_path: Path) -> None:
    run = artifacts.Run(tmp_path / "run", "prepare", TEMPLATE).open({})
    with pytest.raises(InputError, match="has not finished"):
        load_retriever(f"run:{run.path}")
    run.finish({})
    with pytest.raises(InputError, match="has no retriever in it"):
        load_retriever(f"run:{run.path}")


def test_facts_that_are_none_are_one_line(tmp_path: Path, run_folder: Path) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    for content in ({}, {"towers": "tied", "template": {"x": 1}, "similarity": "dot", "params_sha256": ""}):
        artifacts.write_json(tmp_path / "run" / "encoder" / "denseir.json", content)
        for origin in (f"run:{tmp_path / 'run'}", f"hf:{tmp_path / 'run' / 'encoder'}"):
            with pytest.raises(InputError, match=r"denseir\.json holds no usable"):
                load_retriever(origin)
