"""Shares of the training queries are nested, whatever the order of the file."""

import itertools
import json

import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data.query_share import place_of, write_rows_of, write_share


def write(path, ids):
    path.write_text("".join(json.dumps({"query_id": id, "query": f"text {id}", "positives": ["d"], "negatives": {}}) + "\n" for id in ids))
    return path


def kept(path):
    return [json.loads(line)["query_id"] for line in path.read_text().splitlines()]


def test_smaller_shares_are_within_larger_ones(tmp_path):
    ids = [f"q{i}ü" for i in range(1000)]
    file = write(tmp_path / "in.jsonl", ids)
    turned = write(tmp_path / "turned.jsonl", [ids[i] for i in np.random.default_rng(0).permutation(1000)])
    found = {}
    for share, n in ((0.0001, 1), (0.001, 1), (0.01, 10), (0.0514, 51), (0.5, 500), (1.0, 1000)):
        among, used, total = write_share(file, tmp_path / "out.jsonl", share, seed=3)
        found[share] = kept(tmp_path / "out.jsonl")
        assert (used, total, len(found[share])) == (n, 1000, n)
        assert [id for id in ids if among(id)] == found[share], "in the order of the file"
        write_share(turned, tmp_path / "again.jsonl", share, seed=3)
        assert set(kept(tmp_path / "again.jsonl")) == set(found[share])
    ordered = [set(ids) for ids in found.values()]
    assert all(small <= large for small, large in itertools.pairwise(ordered))
    assert sorted(ids, key=lambda id: place_of(id, 3))[:10] == sorted(found[0.01], key=lambda id: place_of(id, 3))
    write_share(file, tmp_path / "out.jsonl", 0.01, seed=4)
    assert set(kept(tmp_path / "out.jsonl")) != set(found[0.01])
    place = {id: i for i, id in enumerate(ids)}
    assert abs(np.mean([place[id] for id in found[0.5]]) - 500) < 40, "no bias to the file's beginning"


def test_rows_stay_as_they_are_and_scores_go_along(tmp_path):
    file = write(tmp_path / "in.jsonl", ["a", "b"])
    more = [{"query_id": id, "passage_id": f"d{n}", "score": n / 3} for id in "ab" for n in range(3)]
    (tmp_path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in more))
    among, _, _ = write_share(file, tmp_path / "out.jsonl", 0.5, seed=0)
    (one,) = kept(tmp_path / "out.jsonl")

    def rows(path):
        return [json.loads(line) for line in path.read_text().splitlines()]

    assert rows(tmp_path / "out.jsonl") == [row for row in rows(file) if row["query_id"] == one]
    write_rows_of(tmp_path / "scores.jsonl", tmp_path / "some.jsonl", among)
    assert rows(tmp_path / "some.jsonl") == [row for row in more if row["query_id"] == one]


def test_a_row_without_id_is_named(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"query_id": "a"}\n{"query": "b"}\n')
    with pytest.raises(InputError, match=r"in\.jsonl:2: "):
        write_share(tmp_path / "in.jsonl", tmp_path / "out.jsonl", 0.5, 0)
    assert not (tmp_path / "out.jsonl").exists()
