"""The table of figures that have a goal, and the benchmarks of the workflow and of a training's start."""

import json

import pytest

from benchmarks import bench, figures
from tests.benchmarks.test_scripts import run


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty directory of results, and a README to write into."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "README", tmp_path / "README.md")
    bench.README.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n", encoding="utf-8")
    return tmp_path


def test_the_table_compares_figures_with_their_goals(results, capsys):
    medians = {"new run, 1 process": 3.5, "resume": 8.0, "read": 1.0}
    (results / "start.json").write_text(json.dumps({"date": "2026-11-23", "medians": medians}), encoding="utf-8")
    assert bench.main(["--table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = [line for line in lines if line.startswith("| start of a training")]
    assert start.endswith("| 3.50 s | \u2264 4.00 s | reached | `start`, 2026-11-23 |")
    (resume,) = [line for line in lines if line.startswith("| resume")]
    assert "| 6.70 s | \u2264 4.00 s | 1.68 of it |" in resume
    assert sum("| not measured |" in line for line in lines) == len(figures.FIGURES) - 2
    text = bench.README.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{bench.BEGIN}\n| figure |") and text.endswith(f"|\n{bench.END}\nafter\n")


def test_a_benchmark_that_fails_does_not_stop_the_others(results, monkeypatch, capfd):
    monkeypatch.setattr(bench, "BENCHMARKS", {"figures": ["--no"], "nothing": []})
    assert bench.main([]) == 1
    printed = capfd.readouterr()
    assert "figures: done" in printed.out and "nothing: FAILED" in printed.out
    assert printed.err.splitlines()[-1] == "failed: nothing"


def test_the_kept_results_have_what_the_table_reads():
    """Every raw result that is kept has the figures; a ratio far from the goal is a change for the worse."""
    for figure in figures.FIGURES:
        path = figures.RESULTS / f"{figure.benchmark}.json"
        if path.exists():
            value = figure.value(json.loads(path.read_text(encoding="utf-8")))
            assert value < 2 * figure.goal if figure.at_most else value > figure.goal / 2, figure.text


@pytest.mark.long
def test_the_workflow_is_measured(tmp_path):
    options = ["--files", "20", "--runs", "4", "--no-demo", "--repeats", "1", "--output", str(tmp_path / "out.json")]
    printed = run("benchmarks.workflow", *options)
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found["plans"]) == {"default", "20 files", "4 runs"}
    assert all(times["cpu_seconds"] > 0 for times in found["plans"].values())
    assert "plan of 4 runs: " in printed


@pytest.mark.long
def test_the_start_of_a_training_is_measured(tmp_path):
    run("benchmarks.start", "--megabytes", "8", "--repeats", "1", "--output", str(tmp_path / "out.json"))
    medians = json.loads((tmp_path / "out.json").read_text())["medians"]
    assert set(medians) == {"new run, 1 process", "new run, 2 processes", "resume", "read", "bytes"}
    assert 0 < medians["read"] < medians["resume"]
