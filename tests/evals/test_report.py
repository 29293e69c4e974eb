"""The page says what it was given, is safe, and reaches for nothing outside itself."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.evals import charts, report
from denseir_jax.evals.evaluation import evaluate
from denseir_jax.evals.table import make_table

QRELS = {f"q{i}": {f"d{i}": 1} for i in range(12)}
GOOD = {q: [(d, 2.0), ("x", 1.0)] for q, judged in QRELS.items() for d in judged}
BAD = {**GOOD, "q3": [("x", 2.0), ("y", 1.0), ("d3", 0.5)], "q4": [("y", 1.0)]}
MEASURES = ["RR@10", "nDCG@10"]


class Page(HTMLParser):
    """Collects tags, their references and the text; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.texts, self.tags = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [v for k, v in attributes if k in ("src", "href", "xlink:href", "action")]
        if tag not in ("meta", "br", "link", "img", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.references += [v for k, v in attributes if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    lines = [{"kind": "train", "step": s, "loss": 5 / s, "loss_mlm": 3 / s, "rate": 1.0} for s in range(1, 900)]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    systems = {"BM25": evaluate(BAD, QRELS, MEASURES), "dense <script>": evaluate(GOOD, QRELS, MEASURES)}
    worst = report.worst_queries(systems["BM25"], BAD, QRELS, {"q3": "the third"}, lambda d: (f"Title {d}", f"Text of {d} & more"), n=3)
    return report.ReportData(
        title="Demo & report",
        summary=["First paragraph."],
        attribution="Texts: CC BY-SA 4.0.",
        table=make_table(systems, MEASURES, "BM25"),
        charts=charts.loss_charts({"pre-training": folder, "absent": folder / "none"}),
        lineage=[report.LineageStep("stage1", "finetune", "abc123", {"store": "def456"}, {"recall": ".99"})],
        worst=worst,
        settings={"seed": "7"},
        versions={"numpy": "2"},
    )


def test_the_page_shows_all_parts_escaped(data):
    text = report.render(data)
    page = Page(text)
    shown = " ".join(page.texts)
    for part in (
        "Demo & report",
        "First paragraph.",
        "CC BY-SA 4.0",
        "dense <script>",
        "stage1",
        "abc123",
        "def456",
        "the third",
        "Title x",
    ):
        assert part in shown, part
    assert "script" not in page.tags
    assert page.tags.count("svg") == 2  # intervals, one training run
    ids = re.findall(r'\sid="([^"]+)"', text)
    used = {reference[1:] for reference in page.references if reference.startswith("#")}
    assert used <= set(ids)


def test_the_page_reaches_for_nothing_outside(data):
    text = report.render(data)
    assert all(reference.startswith("#") for reference in Page(text).references)
    assert not re.search(r"url\((?!#)|@import|<link|<script", text)
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, not addresses


def test_equal_input_gives_equal_bytes(data, tmp_path):
    report.write_report(tmp_path / "report.html", data)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == report.render(data)


def test_an_empty_report_is_a_page():
    page = Page(report.render(report.ReportData("Nothing yet")))
    assert "svg" not in page.tags and "table" not in page.tags


def test_curves_are_averages_of_what_was_logged(data):
    (chart,) = data.charts
    assert [curve.label for curve in chart.curves] == ["loss", "loss_mlm"]
    x, y = np.array(chart.curves[0].x), np.array(chart.curves[0].y)
    assert len(x) == 300 and np.all(np.diff(x) > 0)
    assert y[0] == pytest.approx(np.mean([5 / s for s in (1, 2, 3)]))
    assert x.mean() == pytest.approx(450.0, abs=1)


def test_colours_come_from_the_page_only(data):
    svg = charts.line_svg(data.charts[0])
    assert "var(--line-0)" in svg and "currentColor" in svg and "stroke-dasharray" in svg
    assert not re.findall(r"(?:stroke|fill): #[0-9a-f]{6}", svg)


def test_worst_queries_are_the_worst_in_order(data):
    assert [(w.query, w.value, w.relevant.rank) for w in data.worst[:2]] == [("q4", 0.0, 0), ("the third", 0.5, 3)]
    assert data.worst[1].first.name == "Title x" and data.worst[1].relevant.name == "Title d3"
    assert data.worst[2].value == 1.0


def test_lineage_is_read_from_the_run_folder(tmp_path):
    artifacts.write_json(
        tmp_path / "manifest.json",
        {
            "stage": "mine",
            "sha256": "a" * 64,
            "inputs": {"index": "sha256:" + "b" * 64},
            "index": {"recall": 0.98765},
            "identity": {"loss": 1},
            "outputs": {},
        },
    )
    artifacts.write_json(tmp_path / "metrics.json", {"params_sha256": "c" * 64, "other": 3})
    step = report.lineage_step("mined", tmp_path)
    assert (step.stage, step.sha256, step.inputs) == ("mine", "a" * 12, {"index": "b" * 12})
    assert step.facts == {"index.recall": "0.9877", "params_sha256": "c" * 12}
    with pytest.raises(InputError, match="does not exist"):
        report.lineage_step("gone", tmp_path / "gone")
