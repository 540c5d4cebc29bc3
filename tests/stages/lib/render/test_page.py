"""Charts of a page: which lines have their names at their ends."""

import json
import re

import pytest

from stages.lib.render.chart import Chart, Line
from stages.lib.render.page import LABELED, Head, Section, write


@pytest.mark.parametrize(
    ("num_runs", "sources", "expected"),
    [
        (1, "ab", ["a", "b"]),
        (3, "ab", ["run 0, a", "run 0, b", "run 1, a", "run 1, b", "run 2, a", "run 2, b"]),
        (LABELED // 2 + 1, "ab", ["a", "b"]),  # with all names, they would cover each other
        (LABELED + 1, "", []),
    ],
)
def test_as_many_lines_are_named_at_their_ends_as_can_be_read(tmp_path, num_runs, sources, expected):
    lines = [
        Line(label=f"run {run}, {part}", group=f"run {run}", part=part, points=[(1, 2, None)], color=color)
        for run in range(num_runs)
        for part, color in ([*zip(sources, range(9), strict=False)] or [("loss", None)])
    ]
    chart = Chart(title="Loss", y_label="nats", lines=lines)
    write(tmp_path / "page.html", [Section(title="Training", blocks=[chart])], [], Head(title="Results"))
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="chart-data"[^>]*>(.*?)</script>', text, re.S)[1])
    assert [line["end"] for line in data["charts"][0]["lines"] if line["end"]] == expected
