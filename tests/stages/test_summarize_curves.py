"""summarize: the curves of a training that was killed, rolled back or skipped steps, and the warnings of its events."""

import csv
import json

import pytest

from stages import summarize
from tests.helpers.summary_fixtures import lines, options_of, results

__all__ = ["lines", "results"]


def append(results, name, *entries):
    """Append JSON lines to a file of the run directory; returns its path."""
    path = results / f"runs/base/train/0123456789abcdef/{name}.jsonl"
    with open(path, "a") as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def entry_of(step, loss, samples=0, **more):
    facts = {"step": step, "tokens": step * 256, "loss": loss, "samples": [samples, samples + 4], "time": step}
    return facts | more


def test_missing_metrics_leave_out_only_the_curve(results, lines, capsys):
    (results / "runs/base/train/0123456789abcdef/metrics.jsonl").unlink()
    assert summarize.main(options_of(results)) == 0
    assert "metrics.jsonl" in capsys.readouterr().err


def test_later_entry_of_a_repeated_step_counts(results):
    path = results / "runs/base/train/0123456789abcdef/metrics.jsonl"
    first = path.read_text()
    summarize.main(options_of(results))
    drawn = (results / "figures" / "loss.svg").read_bytes()
    path.write_text(json.dumps({"step": 10, "tokens": 2560, "loss": 99.0}) + "\n" + first + '{"step": 310, "los')
    summarize.main(options_of(results))
    assert (results / "figures" / "loss.svg").read_bytes() == drawn


def test_skipped_steps_have_no_point_in_the_curve(results, lines):
    append(results, "metrics", entry_of(310, None, skipped=True), entry_of(320, 99.0, skipped=True), entry_of(330, 4.5))
    assert summarize.main(options_of(results)) == 0
    assert [tokens // 256 for tokens, _ in lines["base, training"]] == [*range(10, 310, 10), 330]
    assert lines["base, training"][-1] == (330 * 256, 4.5)


def test_curve_after_a_kill_and_a_rollback_has_the_last_entry_of_each_step(results, lines):
    killed = [entry_of(step, 4.0, step) for step in (310, 320)]
    again = [entry_of(310, 3.9, 310), {**entry_of(320, None, 320), "skipped": True}]
    scores = {"code": {"loss": 99.0, "loss_bits_per_byte": 50.0}}
    append(results, "metrics", *killed, *again, {"step": 320, "tokens": 320 * 256, "validation": scores, "time": 320})
    append(results, "events", {"event": "rollback", "step": 300, "left": 320, "samples": [302, 324], "time": 325})
    append(results, "metrics", entry_of(310, 3.8, 324, time=330))
    assert summarize.main(options_of(results)) == 0
    curve = lines["base, training"]
    assert [tokens for tokens, _ in curve] == sorted({tokens for tokens, _ in curve})
    assert curve[-2:] == [(300 * 256, 5.0), (310 * 256, 3.8)]
    assert lines["base, validation code"] == [(76800, 5.2)]


def test_validation_losses_of_different_text_are_not_joined(results, lines):
    texts = {310: "b", 320: "a", 330: "b", 340: "b"}
    for step, text in texts.items():
        scores = {"code": {"loss": 4.0, "text": text}}
        append(results, "metrics", {"step": step, "tokens": step * 256, "validation": scores, "time": step})
    assert summarize.main(options_of(results)) == 0
    curves = {
        label: [tokens // 256 for tokens, _ in points] for label, points in lines.items() if "validation" in label
    }
    assert curves == {
        "base, validation code, text 1": [300],
        "base, validation code, text 2": [310, 330, 340],
        "base, validation code, text 3": [320],
    }


@pytest.mark.parametrize(("share", "warned"), [(0.07, False), (0.05, True)])
def test_text_warns_of_experts_without_work(results, lines, share, warned):
    loads = [[[0.4, 0.1, 0.25, 0.25], [share + change, 0.5 - share - change, 0.25, 0.25]] for change in (-0.02, 0.02)]
    append(results, "metrics", *(entry_of(310 + n, 4.0, expert_load=load) for n, load in enumerate(loads)))
    assert summarize.main(options_of(results)) == 0
    sentence = "less than 0.25 of an equal share of the tokens in the last 2 steps, expert 0 of layer 1 0.20"
    assert (sentence in (results / "summary.txt").read_text()) == warned


def test_text_lists_skipped_steps_rollbacks_and_hangs(results, lines):
    skip = {"event": "skip", "step": 20, "samples": [76, 80], "time": 0}
    rollback = {"event": "rollback", "step": 10, "samples": [40, 80], "time": 0}
    hang = {"event": "hang", "step": 30, "time": 0, "stamp": "1", "seconds": 9, "rank": 0, "host": "node1"}
    path = append(results, "events", skip, rollback, hang)
    assert summarize.main(options_of(results)) == 0
    text = (results / "summary.txt").read_text()
    assert f"  run base: 1 step skipped, 1 rollback, 1 hang; see {path}\n" in text
    path.write_text("")
    summarize.main(options_of(results))
    assert "Warnings:" not in (results / "summary.txt").read_text()


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
    assert summarize.main(["--results", str(results), "--scores", str(results / "mine.csv")]) == 0
    assert (results / "mine.csv").exists()  # another output is named


def test_results_without_any_and_a_missing_directory(tmp_path, capsys):
    assert summarize.main([f"--results={tmp_path}"]) == 0
    for name in ("summary.txt", "card.html"):
        assert "There are no results yet." in (tmp_path / "so_far" / name).read_text()
    assert b"no results yet" in (tmp_path / "so_far/figures/loss.svg").read_bytes()
    with pytest.raises(SystemExit) as end:
        summarize.main(["--results", str(tmp_path / "none")])
    assert end.value.code == 2
    assert f"--results must be a directory, got {tmp_path / 'none'}" in capsys.readouterr().err
