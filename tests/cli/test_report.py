"""Tables, charts and the page."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.report.chart import HEIGHT, MAX_POINTS, WIDTH, Series, line_chart
from tiergnn.report.table import pairs, table


def test_table_aligns_numbers_right_and_says_na():
    assert table(("name", "count"), [("a", 5), ("longer", 12345), ("none", None)]) == (
        "name     count\n------  ------\na            5\nlonger  12,345\nnone       n/a"
    )


def test_pairs_align_values():
    assert pairs([("a", True), ("long", 0.5)]) == "a     yes\nlong  0.5000"


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(tag))


def test_chart_breaks_the_line_where_a_value_is_missing():
    curve = Series("loss", (1.0, 2.0, 3.0, 4.0, 5.0), (1.0, 2.0, None, float("nan"), 3.0))
    (path,) = elements(line_chart("Loss", [curve], x_label="epoch"), "path")
    assert re.sub(r"[0-9. ]", "", path.attrib["d"]) == "MLM"


def test_chart_escapes_names():
    svg = line_chart("<script>&", [Series('"><b>', (1.0,), (2.0,))], x_label="</svg>")
    texts = [text.text for text in elements(svg, "text")]
    assert "<script>&" in texts
    assert '"><b>' in texts
    assert "</svg>" in texts


def test_chart_of_nothing_says_so():
    assert "nothing was recorded" in line_chart(
        "Loss", [Series("a", (1.0,), (math.nan,))], x_label="epoch"
    )


def test_chart_marks_the_best_epoch():
    curve = Series("loss", tuple(map(float, range(1, 11))), tuple(map(float, range(10))))
    svg = line_chart("Loss", [curve], x_label="epoch", mark=(5, "best 5"))
    assert "best 5" in [text.text for text in elements(svg, "text")]
    outside = line_chart("Loss", [curve], x_label="epoch", mark=(50, "best 50"))
    assert "best 50" not in outside


def test_long_curves_are_thinned_but_keep_their_ends():
    n = 12_345
    points = Series("loss", tuple(map(float, range(n))), tuple(map(float, range(n)))).points()
    assert len(points) <= MAX_POINTS + 1
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (n - 1.0, n - 1.0)


numbers = st.one_of(
    st.floats(-1e12, 1e12), st.floats(0, 1), st.sampled_from([7.9e-272, 5e-324, 1e-291, 0.0])
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.none(), numbers), min_size=1, max_size=30))
def test_chart_stays_within_its_frame(values):
    x = tuple(float(i + 1) for i in range(len(values)))
    svg = line_chart("t", [Series("s", x, tuple(values))], x_label="epoch")
    if all(value is None for value in values):
        assert "nothing was recorded" in svg
        return
    for path in elements(svg, "path"):
        placed = [float(number) for number in re.findall(r"-?[0-9.]+", path.attrib["d"])]
        assert all(0 <= px <= WIDTH for px in placed[::2])
        assert all(0 <= py <= HEIGHT for py in placed[1::2])
    for circle in elements(svg, "circle"):
        assert 0 <= float(circle.attrib["cx"]) <= WIDTH
        assert 0 <= float(circle.attrib["cy"]) <= HEIGHT


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_are_not_drawn(bad):
    svg = line_chart("t", [Series("s", (1.0, 2.0, 3.0), (1.0, bad, 2.0))], x_label="epoch")
    (path,) = elements(svg, "path")
    assert "nan" not in path.attrib["d"]
    assert "inf" not in path.attrib["d"]
