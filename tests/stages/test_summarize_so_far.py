"""summarize --results: of all results that exist, while a training runs."""

import csv
import json

import pytest

from stages import summarize
from tests.helpers.summary_fixtures import results

__all__ = ["results"]


def test_all_that_exists_is_summarized_without_a_list_and_into_its_own_folder(results):
    run = results / "runs/base"
    (run / "eval/00000300/validation.json").unlink()  # it is scored now
    (run / "models/.00000400.json.partial.json").write_text("{")
    newest = {"step": 310, "tokens": 310 * 256, "loss": 4.9, "tokens_per_second": 1000.0}
    with open(run / "train/0123456789abcdef/metrics.jsonl", "a") as file:
        file.write(json.dumps(newest) + "\n")
    assert summarize.main(["--results", str(results)]) == 0
    with open(results / "so_far/scores.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["step"] for row in rows if row["run"] == "base"} == {"100"}
    assert "base" in (results / "so_far/summary.txt").read_text()
    assert (results / "so_far/figures/loss.svg").stat().st_size > 1000
    assert not (results / "scores.csv").exists() and not (results / "summary.json").exists()


def test_results_without_any_and_a_missing_directory(tmp_path, capsys):
    assert summarize.main([f"--results={tmp_path}"]) == 0
    assert "There are no results yet." in (tmp_path / "so_far/summary.txt").read_text()
    with pytest.raises(SystemExit) as end:
        summarize.main(["--results", str(tmp_path / "none")])
    assert end.value.code == 2
    assert f"--results must be a directory, got {tmp_path / 'none'}" in capsys.readouterr().err


def test_other_outputs_can_be_named(results, tmp_path):
    assert summarize.main(["--results", str(results), "--scores", str(tmp_path / "mine.csv")]) == 0
    assert (tmp_path / "mine.csv").exists() and not (results / "so_far/scores.csv").exists()
