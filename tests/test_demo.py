"""The first steps of a newcomer: clone, `make demo`. It takes the installation and about five minutes."""

import csv
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.landing, pytest.mark.long, pytest.mark.timeout(1800)]


def make(directory, target):
    """Run make as from a fresh shell; returns (seconds, its output: stderr, then stdout)."""
    # The tests themselves are often run by make, which would otherwise tell this one that it is a sub-make.
    inherited = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    environment["PATH"] = ":".join(part for part in environment["PATH"].split(":") if ".venv" not in part)
    begun = time.monotonic()
    done = subprocess.run(
        ["make", target], check=False, cwd=directory, env=environment, capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return time.monotonic() - begun, done.stderr + done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A fresh clone with nothing installed, in a path with a space."""
    directory = tmp_path_factory.mktemp("fresh clone") / "caravan"
    subprocess.run(["git", "clone", "--quiet", HOME, directory], check=True)
    return directory


@pytest.fixture(scope="module")
def demo(clone):
    """The clone after `make demo`, and its output."""
    seconds, printed = make(clone, "demo")
    print(f"make demo took {seconds:.0f} s with the installation;", *re.findall(r"Elapsed time: .*", printed))
    return clone, printed


def test_demo_ends_with_scores_that_show_learning(demo):
    clone, printed = demo
    with open(clone / "results/scores.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:8] == ["run", "step", "tokens", "task", "metric", "value", "stderr", "n"]
    assert {row["run"] for row in rows if not row["step"]} >= {"trivial indent", "trivial shared_words"}
    for source in ("code", "prose"):
        first, last = [
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
    assert (clone / "results/summary.txt").read_text().strip() in printed
    see, report = printed.splitlines()[-2:]
    assert "results/card.html" in see and report.endswith(" results/report.html")
    for name in ("report.html", "card.html", "figures/loss.svg", "figures/bits_per_byte.svg", "figures/accuracy.svg"):
        assert (clone / "results" / name).stat().st_size > 1000


def test_second_demo_does_nothing(demo):
    clone, _ = demo
    _, printed = make(clone, "demo")
    assert "Nothing to be done" in printed
