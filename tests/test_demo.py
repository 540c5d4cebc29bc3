"""The first steps of a newcomer, docs/tutorials/first_run.md. It takes the installation and about five minutes."""

import csv
import os

import pytest

from tests.docs.tutorials import clone, follow

pytestmark = [pytest.mark.landing, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A fresh clone in which the tutorial was followed, with nothing installed."""
    directory = clone(tmp_path_factory.mktemp("demo"))
    # the tests themselves are often run by make, which would otherwise tell this one that it is a sub-make
    inherited = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    fresh = {name: value for name, value in os.environ.items() if name not in inherited}
    fresh["PATH"] = ":".join(part for part in fresh["PATH"].split(":") if ".venv" not in part)
    follow("first_run", directory, fresh)
    return directory


def test_first_run_ends_with_scores_that_show_learning(demo):
    with open(demo / "results/scores.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:8] == ["run", "step", "tokens", "task", "metric", "value", "stderr", "n"]
    assert {row["run"] for row in rows if not row["step"]} >= {"trivial indent", "trivial shared_words"}
    for source in ("code", "prose"):
        first, *_, last = [
            float(row["value"])
            for row in rows
            if row["step"] and row["task"] == f"bits_per_byte_{source}" and row["metric"] == "bits_per_byte"
        ]
        assert last < first < 4
    of_next_line = {row["metric"]: row for row in rows if row["task"] == "next_line" and row["step"] == "300"}
    assert of_next_line.keys() == {"acc_mutual_info", "bpb"}
    accuracy = of_next_line["acc_mutual_info"]
    # other versions of Python are other texts: 3.11.7 ends at 0.490
    assert float(accuracy["value"]) > 0.25 + 2 * float(accuracy["stderr"])
    for name in ("report.html", "card.html", "figures/loss.svg", "figures/bits_per_byte.svg", "figures/accuracy.svg"):
        assert (demo / "results" / name).stat().st_size > 1000
