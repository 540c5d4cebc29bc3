"""The table of figures that have a goal, and the benchmarks of the workflow and of a training's start."""

import json
import shutil

import pytest

from benchmarks import bench, figures
from tests.benchmarks.test_scripts import run

PAGES = (figures.README, figures.PAGE)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A copy of the pages and of the raw results."""
    shutil.copytree(figures.RESULTS, tmp_path / "benchmarks/results")
    for page in PAGES:
        shutil.copy(figures.HOME / page, tmp_path / page)
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "benchmarks/results")
    monkeypatch.setattr(figures, "HOME", tmp_path)
    return tmp_path


def test_the_pages_have_the_figures_of_the_raw_results(capsys):
    assert figures.main(["--check"]) == 0, capsys.readouterr().err


def test_a_changed_result_is_found_and_written(home, capsys):
    path = home / "benchmarks/results/train_cpu.json"
    found = json.loads(path.read_text())
    found["ratios"]["litgpt"]["tokens_per_second"] = 1.4567
    found["hardware"]["processor"] = "A(R) New Processor"
    path.write_text(json.dumps(found))
    before = {page: (home / page).read_text() for page in PAGES}
    assert figures.main(["--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"figures: {page} differs from benchmarks/results: run python -m benchmarks.figures" for page in PAGES
    ]
    assert {page: (home / page).read_text() for page in PAGES} == before
    assert figures.main([]) == 0
    assert "| | 1.46 x; 0.44 x the memory | litgpt 0.5.13 |" in (home / figures.README).read_text()
    assert "All measured on 2 CPU cores of an A New and Intel Xeon (LoRA" in (home / figures.README).read_text()
    assert "| litgpt 0.5.13 | 1.46 | 1.18 |" in (home / figures.PAGE).read_text()
    assert figures.main(["--check"]) == 0


def test_a_page_without_a_figure_is_one_sentence(home, capsys):
    page = home / figures.README
    page.write_text(page.read_text().replace("| scoring the demo's model,", "| scoring a model,"))
    assert figures.main([]) == 2
    assert capsys.readouterr().err.startswith("figures: README.md must have once, and has 0 times: | scoring the demo")


def test_the_table_compares_figures_with_their_goals(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    medians = {"new run, 1 process": 3.5, "resume": 8.0, "read": 1.0}
    found = {"date": "2026-11-23", "hardware": {"processor": "AMD EPYC"}, "medians": medians}
    (tmp_path / "start.json").write_text(json.dumps(found), encoding="utf-8")
    lines = figures.table()
    (start,) = [line for line in lines if line.startswith("| start of a training")]
    assert start.endswith("| 3.50 s | \u2264 4.00 s | reached | `start`, 2026-11-23, AMD EPYC |")
    (resume,) = [line for line in lines if line.startswith("| resume")]
    assert "| 6.70 s | \u2264 4.00 s | 1.68 of it |" in resume
    assert sum("| not measured |" in line for line in lines) == len(figures.FIGURES) - 2


def test_a_benchmark_that_fails_does_not_stop_the_others(home, monkeypatch, capfd):
    monkeypatch.setattr(bench, "BENCHMARKS", {"figures": ["--check"], "nothing": []})
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
