"""Timelines and memories are drawn whole: every lane, every byte, nothing that is not there."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from tiergnn.report.chart import frontier_chart
from tiergnn.report.lanes import memory_chart, timeline_chart
from tiergnn.schedule.timeline import Span, Timeline


def timeline(source, *spans):
    return Timeline(
        source=source,
        spans=tuple(
            Span(index=i, rank=rank, lane=lane, label=label, start_s=start, end_s=end)
            for i, (rank, lane, label, start, end) in enumerate(spans)
        ),
    )


def rects(svg, height="18"):
    root = ElementTree.fromstring(svg)
    return [node for node in root.iter("rect") if node.get("height") == height]


def test_lanes_of_both_timelines_share_one_scale():
    predicted = timeline(
        "predicted", (0, "h2d", "COPY s0", 0.0, 1.0), (0, "compute", "LOSS", 1.0, 2.0)
    )
    measured = timeline("measured", (0, "compute", "LOSS", 0.0, 4.0))
    svg = timeline_chart("one step", [predicted, measured])
    assert "h2d, predicted" in svg
    assert "compute, measured" in svg
    by_tip = {node.find("title").text: float(node.get("width")) for node in rects(svg)}
    assert len(by_tip) == 3
    assert by_tip["LOSS: 4.0 s from 0 us"] == 4 * by_tip["COPY s0: 1.0 s from 0 us"]
    assert "4.0 s</text>" in svg


def test_ranks_are_named_only_where_there_are_several():
    one = timeline("predicted", (0, "compute", "STEP", 0.0, 1.0))
    assert "compute r0" not in timeline_chart("t", [one])
    two = timeline("predicted", (0, "compute", "STEP", 0.0, 1.0), (1, "compute", "STEP", 0.0, 1.0))
    assert "compute r1" in timeline_chart("t", [two])


def test_a_hundred_thousand_spans_make_a_small_page():
    step = 1e-5
    spans = [(0, "compute", f"FORWARD s{i % 3}", i * step, (i + 1) * step) for i in range(100_000)]
    svg = timeline_chart("many", [timeline("measured", *spans)])
    assert len(svg) < 200_000
    covered = sum(float(node.get("width")) for node in rects(svg))
    assert abs(covered - 514) < 1.5  # the plot's whole width: nothing was left out
    assert "times: " in svg


def test_bytes_of_kinds_add_up():
    held = {
        "device": {"topology": 3 * 2**20, "features": 2**20},
        "host": {},
        "disk": {"staging": 2**22},
    }
    svg = memory_chart("memory", held)
    widths = {node.find("title").text: float(node.get("width")) for node in rects(svg)}
    assert widths["topology: 3.0 MiB"] == 3 * widths["features: 1.0 MiB"]
    assert widths["staging: 4.0 MiB"] == sum(
        widths[tip] for tip in ("topology: 3.0 MiB", "features: 1.0 MiB")
    )
    assert ">host<" not in svg


def test_nothing_recorded_is_said_and_text_is_escaped():
    assert "nothing was recorded" in timeline_chart("t", [])
    assert "nothing was recorded" in memory_chart("t", {"device": {}})
    svg = timeline_chart("<b>", [timeline("measured", (0, "compute", "<i> s0", 0.0, 1.0))])
    assert not re.search(r"<[bi]>", svg)
    ElementTree.fromstring(svg)


def test_a_frontier_marks_what_was_chosen():
    points = [(1.0, 9.0, "a"), (2.0, 4.0, "b"), (5.0, 3.5, "c")]
    svg = frontier_chart("frontier", points, x_label="GiB", chosen=1)
    root = ElementTree.fromstring(svg)
    dots = {node.find("title").text: node for node in root.iter("circle")}
    assert set(dots) == {"a", "b", "c"}
    assert [tip for tip, dot in dots.items() if dot.get("fill") == "var(--c1)"] == ["b"]
    assert float(dots["a"].get("cy")) < float(dots["b"].get("cy")) < float(dots["c"].get("cy"))
    assert "nothing was found" in frontier_chart("f", [], x_label="GiB", chosen=None)
