"""The figures in the pages, their table, the file of results and the run of all benchmarks."""

import json
import shutil

import pytest

from benchmarks import bench, figures, harness

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


def test_no_kept_result_is_far_from_its_goal():
    found = figures.facts()
    for figure in figures.FIGURES:
        value = figure.value(found)
        assert value < 2 * figure.goal if figure.at_most else value > figure.goal / 2, figure.text


def test_results_are_a_line_per_turn():
    turns = [{"load": 0.5, "caravan": {"seconds": 1 / 3}, "a peer": {"seconds": 2.0, "notes": "x" * 300}}] * 3
    lines = harness.lines_of({"command": "c", "turns": turns}).splitlines()
    assert len(lines) == 8 and lines[1] == ' "command": "c",' and lines[3].startswith('  {"load": 0.5, "caravan"')
    assert json.loads("\n".join(lines))["turns"][2]["caravan"] == {"seconds": 0.3333333}


def test_a_benchmark_that_fails_does_not_stop_the_others(home, monkeypatch, capfd):
    monkeypatch.setattr(bench, "BENCHMARKS", {"figures": ["--check"], "nothing": []})
    assert bench.main([]) == 1
    printed = capfd.readouterr()
    assert "figures: done" in printed.out and "nothing: FAILED" in printed.out
    assert printed.err.splitlines()[-1] == "failed: nothing"
