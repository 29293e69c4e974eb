"""Teacher scores by ids: what is read, what is refused, and groups in which every passage has one."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_training_set import MIXED, groups, make, store  # noqa: F401  # the fixture

from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BadRows
from denseir_jax.data.teacher_scores import TeacherScores, read_teacher_scores, write_teacher_scores

QUERIES, ROWS = {"q0": 0, "q1": 1}, {"d0": 0, "d1": 1, "d2": 2, "copy": 3}
TEXTS = np.array([0, 1, 2, 0])  # the last passage repeats the first


def read(path: Path, bad: BadRows | None = None) -> TeacherScores:
    return read_teacher_scores(path, QUERIES, ROWS, TEXTS, bad or BadRows())


def test_scores_are_found_by_ids_in_any_order(tmp_path):
    path = tmp_path / "scores.jsonl"
    assert write_teacher_scores(path, [("q1", "d2", -1.5), ("q0", "copy", 2.0), ("other", "d9", 1.0), ("q0", "d1", 0.25)]) == 4
    found = read(path)
    np.testing.assert_array_equal(found.of(np.array([[0], [1]]), np.array([0, 1, 2])), [[2.0, 0.25, np.nan], [np.nan, np.nan, -1.5]])
    assert found.of(np.array([0]), np.array([0])).dtype == np.float32
    again = tmp_path / "again.jsonl"
    again.write_text("".join(sorted(path.read_text().splitlines(keepends=True))))
    np.testing.assert_array_equal(read(again).values, found.values)


BAD = {
    "score is not a finite number": {"query_id": "q0", "passage_id": "d1", "score": "1.5"},
    "unknown passage": {"query_id": "q0", "passage_id": "d9", "score": 1.0},
    "no id": {"query_id": "q0", "score": 1.0},
    "two scores of one pair": {"query_id": "q0", "passage_id": "copy", "score": 3.0},
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_rows_are_refused_by_line_or_skipped_and_counted(tmp_path, reason):
    path = tmp_path / "scores.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"query_id": "q0", "passage_id": "d0", "score": 1}, BAD[reason])))
    with pytest.raises(InputError, match=rf"scores\.jsonl:2: {reason}"):
        read(path)
    bad = BadRows("skip")
    assert read(path, bad).values.tolist() == [1.0] and bad.counts == {reason: 1}


def test_scores_of_other_queries_alone_are_refused(tmp_path):
    path = tmp_path / "scores.jsonl"
    write_teacher_scores(path, [("q7", "d1", 1.0)])
    with pytest.raises(InputError, match="has no score for any query of the training set"):
        read(path)


def scored(store, *pairs: tuple[int, int]) -> TeacherScores:  # noqa: F811
    keys = sorted(query * store.n_documents + int(store.content_ids[row]) for query, row in pairs)
    return TeacherScores(np.array(keys), np.array([key / 8 for key in keys], np.float32), store.n_documents)


def test_groups_hold_scored_passages_alone(store):  # noqa: F811
    """Query 0 has scores of five negatives and its positive, query 1 of one positive of two and two negatives, query 2 too few."""
    teacher = scored(store, *((0, row) for row in (0, 2, 3, 4, 6, 8)), (1, 9), (1, 10), (1, 12), (2, 13), (2, 15), (3, 16))
    source = groups(store, MIXED, size=3, teacher=teacher)
    assert source.n_items == 2
    assert source.counts == {"queries": 2, "skipped": 2, "negatives": 8, "dropped": 4, "short": 0, "filled": 0, "unscored": 5}
    rows = source.rows(np.arange(40))
    assert rows["teacher"].dtype == np.float32 and rows["teacher"].shape == (40, 3)
    for group, scores, known in zip(rows["passage_row"], rows["teacher"], rows["known"], strict=True):
        query = 0 if 0 in known else 1
        np.testing.assert_array_equal(scores, (query * store.n_documents + group) / np.float32(8))
        assert set(group[1:].tolist()) <= ({2, 3, 4, 6, 8} if query == 0 else {10, 12})
        assert group[0] == (0 if query == 0 else 9), "a positive without a score is not drawn"
        assert query == 0 or set(known.tolist()) == {1, 9}, "but it is known all the same"


def test_without_a_whole_group_nothing_is_learnt(store):  # noqa: F811
    with pytest.raises(InputError, match="and 2 negatives, that the teacher scored: nothing to learn from"):
        groups(store, make(([0], {"bm25": [2, 3]})), size=3, teacher=scored(store, (0, 0), (0, 2)))
