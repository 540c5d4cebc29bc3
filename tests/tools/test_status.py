"""The state of runs, complete or not."""

import json
import os
import socket
import time

import pytest

from stages.lib import manifest
from stages.lib.checkpoints import commit
from stages.lib.run_directory import lease
from stages.lib.training import stop_requests, watchdog
from tests.workflow.checkout import write_commands
from tools.status import __main__ as status


@pytest.fixture
def directory(tmp_path):
    """A run directory with 50 of 100 steps, a complete checkpoint and an incomplete one."""
    made = tmp_path / "runs" / "base" / "train" / "0123456789abcdef"
    for step, complete in ((20, True), (40, False)):
        checkpoint = made / "checkpoints" / f"{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "__0_0.distcp").write_bytes(b"12345")
        commit.write_commit(checkpoint, {}, {"__0_0.distcp": {"bytes": 5 if complete else 6, "sha256": ""}})
    lines = [
        {"step": step, "tokens": step * 1000, "loss": 5.0, "tokens_per_second": 500.0, "grad_norm": 1.0}
        for step in range(1, 51)
    ]
    (made / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 51, "to')
    write_events(made, {"event": "start", "step": 0, "steps": 100})
    return made


def write_events(directory, *events):
    with open(directory / "events.jsonl", "a") as file:
        file.writelines(json.dumps({"time": time.time(), **event}) + "\n" for event in events)


def shown(capsys, root, *options):
    """The output of status."""
    assert status.main(["--results", str(root), *options]) == 0
    return capsys.readouterr().out


def test_results_without_a_run_and_a_run_without_anything(tmp_path, capsys):
    assert status.main(["--results", str(tmp_path / "none")]) == 2
    assert "--results" in capsys.readouterr().err
    assert "no run has started" in shown(capsys, tmp_path)
    (tmp_path / "runs/base/train/00").mkdir(parents=True)
    text = shown(capsys, tmp_path)
    assert "none yet" in text and "not started" in text


def test_step_speed_time_left_and_last_complete_checkpoint_and_no_problems(directory, tmp_path, capsys):
    text = shown(capsys, tmp_path)
    assert "50 of 100 (50%), 50,000 tokens, loss 5.0000" in text
    assert "500 tokens/s, 1:40 left" in text
    assert "checkpoints/00000020" in text and "checkpoints/00000040" not in text
    assert f"base in {directory}" in text
    labels = [line.split("  ")[1] for line in text.splitlines()[1:]]
    assert labels == ["step", "speed", "checkpoint", "state", "milestones"]


def test_live_trainer_is_named_and_its_directory_is_in_use(directory, tmp_path, capsys):
    held = lease.Lease(directory)
    try:
        assert f"training now: process {os.getpid()} on {socket.gethostname()}" in shown(capsys, tmp_path)
        assert str(directory) not in shown(capsys, tmp_path, "--unused")
    finally:
        held.release()


STOPS = [
    ({"event": "stop", "step": 50, "reason": "stopped, saved", "preempted": True}, "  stopped, saved\n"),
    ({"event": "finish", "step": 100}, "reached its milestone, step 100"),
    ({"event": "stop", "step": 50, "reason": "KeyboardInterrupt: "}, "stopped at step 50: KeyboardInterrupt\n"),
    ({"event": "save", "step": 40}, "no event after 'save' at step 40: killed, or the node was lost; restart to r"),
]


def test_why_a_run_stopped(directory, tmp_path, capsys):
    for content in ("", '{"reason": 1, "step": "x", "time": 0}'):  # a damaged reason is ignored
        (directory / stop_requests.MARKER).write_text(content)
        assert "no event after 'start' at step 0: killed" in shown(capsys, tmp_path)
    (directory / stop_requests.MARKER).unlink()
    for event, words in STOPS:
        write_events(directory, event)
        assert words in shown(capsys, tmp_path)


def test_run_stopped_on_request_shows_the_reason_and_how_to_resume(directory, tmp_path, capsys):
    write_events(directory, {"event": "stop", "step": 1050, "reason": "stopped by SIGTERM", "preempted": True})
    stop_requests.leave_marker(directory, "SIGTERM", 1050)
    words = "state        stopped by SIGTERM, saved at step 1,050; restart to resume\n"
    assert words in shown(capsys, tmp_path)
    stop_requests.clear_marker(directory)  # it was restarted, and killed
    write_events(directory, {"event": "resume", "step": 1050, "steps": 2000})
    assert "no event after 'resume' at step 1,050: killed" in shown(capsys, tmp_path)


def test_jobs_of_this_workflow_in_the_queue_are_shown(tmp_path, capsys, monkeypatch):
    results = tmp_path / "results"
    results.mkdir()
    lines = [
        f"7|pretrain_base_00000100|RUNNING|5:00|12:00:00|node1|{tmp_path}",
        f"8|evaluate_base_00000050_validation|PENDING|0:00|2:00:00|(Priority)|{tmp_path}",
        "9|other|RUNNING|5:00|12:00:00|node2|/elsewhere",
    ]
    write_commands(tmp_path, {"squeue": "\n".join(f"echo '{line}'" for line in lines)})
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert shown(capsys, results).endswith(
        "in the queue of Slurm\n"
        "  7            pretrain_base_00000100: running, 5:00 of 12:00:00, node1\n"
        "  8            evaluate_base_00000050_validation: pending, 0:00 of 2:00:00, (Priority)\n"
    )
    write_commands(tmp_path, {"squeue": "exit 1"})
    assert "queue" not in shown(capsys, results)


def write_metrics(directory, *entries):
    """Append entries to the 50 good steps."""
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    with open(directory / "metrics.jsonl", "a") as file:
        file.write("\n" + text)  # the last line was incomplete


def step(number, **more):
    entry = {"step": number, "tokens": number * 1000, "loss": 5.0, "tokens_per_second": 500.0, "time": number}
    return entry | {"samples": [number * 10 - 10, number * 10]} | more


def test_skipped_step_has_no_loss(directory, tmp_path, capsys):
    write_metrics(directory, step(51, loss=None, skipped=True))
    write_events(directory, {"event": "skip", "step": 51, "samples": [500, 510], "loss": "nan"})
    text = shown(capsys, tmp_path)
    assert "51 of 100 (51%), 51,000 tokens, loss not finite, skipped\n" in text
    assert "problems     1 step skipped\n" in text
    write_metrics(directory, step(52, loss=99.5, skipped=True))
    assert "52,000 tokens, loss 99.5000, skipped\n" in shown(capsys, tmp_path)


def test_rollback_shows_the_step_that_it_returned_to(directory, tmp_path, capsys):
    skips = [{"event": "skip", "step": number, "samples": [number * 10 - 10, number * 10]} for number in (51, 52)]
    write_metrics(directory, step(51, loss=None, skipped=True), step(52, loss=None, skipped=True))
    write_events(directory, *skips, {"event": "rollback", "step": 50, "left": 53, "samples": [500, 520]})
    text = shown(capsys, tmp_path)
    assert "50 of 100 (50%), 50,000 tokens, loss 5.0000\n" in text
    assert "problems     2 steps skipped, 1 rollback\n" in text
    write_metrics(directory, step(51, loss=4.5, samples=[520, 530]))
    assert "51 of 100 (51%), 51,000 tokens, loss 4.5000\n" in shown(capsys, tmp_path)


def test_newest_validation_loss_is_shown(directory, tmp_path, capsys):
    for at, loss in ((20, 4.5), (40, 4.25)):
        scores = {"web": {"loss": loss, "loss_bits_per_byte": 2.0}, "books": {"loss": 3.0, "loss_bits_per_byte": 1.0}}
        write_metrics(directory, {"step": at, "tokens": at * 1000, "validation": scores, "time": 1})
    text = shown(capsys, tmp_path)
    assert "validation   loss web 4.2500, books 3.0000 at step 40\n" in text
    assert "50 of 100" in text


def test_mfu_is_shown_if_the_peak_is_known(directory, tmp_path, capsys):
    assert "MFU" not in shown(capsys, tmp_path)
    write_metrics(directory, *(step(number, mfu="n/a", tokens_per_second_overall=500.0) for number in range(51, 71)))
    assert "MFU" not in shown(capsys, tmp_path)
    write_metrics(directory, *(step(number, mfu=0.41, tokens_per_second_overall=250.0) for number in range(71, 91)))
    # time left: saving and evaluating halve the speed
    assert "500 tokens/s, MFU 41.0%, 0:40 left\n" in shown(capsys, tmp_path)


@pytest.mark.parametrize(("slow", "shows"), [(1.9, True), (1.1, False)])
def test_slowest_rank_is_shown_if_it_is_much_slower(directory, tmp_path, capsys, slow, shows):
    hosts = ["node7"] * 15 + ["node3"] * 5
    told = [{"max": 0.1 * slow, "median": 0.1, "slowest": host} for host in hosts]
    told[0] = {"max": 0.0, "median": 0.0, "slowest": "node1"}  # before the first step
    told[1] = {"max": 60.0, "median": 0.1, "slowest": "node1"}  # a single slow step
    write_metrics(directory, *(step(51 + number, ranks=ranks) for number, ranks in enumerate(told)))
    text = shown(capsys, tmp_path)
    assert ("  slowest rank on node7, 1.9 times the median rank's time per step\n" in text) == shows
    assert ("slowest rank" in text) == shows


def test_hang_is_shown_with_its_stacks_also_after_the_run_resumed(directory, tmp_path, capsys):
    call = {"step": 50, "stamp": "20270131T101500Z", "rank": 3, "host": "node7", "phase": "step", "seconds": 600.2}
    write_events(directory, {"event": "hang", **call})
    text = shown(capsys, tmp_path)
    assert "hung at step 50, detected after 10:00 by rank 3 on node7; restart to resume\n" in text
    assert "problems     1 hang\n" in text
    where = "hang/20270131T101500Z-rank*.txt"
    assert f"last hang    at step 50, 0:00 ago; stacks of the ranks in {where}\n" in text
    assert directory / where == watchdog.stacks_pattern(directory, call["stamp"])
    write_events(directory, {"event": "resume", "step": 40, "steps": 100}, {"event": "stop", "step": 50, "reason": "x"})
    text = shown(capsys, tmp_path)
    assert where in text
    assert "stopped at step 50: x\n" in text


def add_milestone(directory, step):
    """A model manifest that refers to the run directory, and its scores."""
    home = directory.parents[1]
    path = home / "models" / f"{step:08d}.json"
    path.parent.mkdir(exist_ok=True)
    record = {"run_directory": f"../train/{directory.name}", "horizon": {"steps": 100}}
    manifest.write(path, "pretrain", {"step": step, "tokens": step * 1000}, record)
    scores = home / "eval" / f"{step:08d}" / "validation.json"
    scores.parent.mkdir(parents=True)
    results = {"next_line": {"acc": {"value": 0.4, "stderr": 0.1}}, "bits": {"bits_per_byte": {"value": None}}}
    manifest.write(scores, "evaluate", {"results": results}, {})
    return scores


def test_milestones_and_scores_are_listed_and_an_incomplete_file_is_not_an_error(directory, tmp_path, capsys):
    assert "no milestone yet" in shown(capsys, tmp_path)
    add_milestone(directory, 20)
    add_milestone(directory, 50).write_text('{"identity": {"res')
    text = shown(capsys, tmp_path)
    assert "milestones   20, 50" in text
    assert "validation: next_line acc 0.400, bits -" in text
    assert "validation: not readable" in text


def test_results_of_an_earlier_format_are_refused(directory, tmp_path, capsys):
    path = add_milestone(directory, 20)
    path.write_text(json.dumps({"identity": {}, "record": {}}))
    assert status.main(["--results", str(tmp_path)]) == 2
    assert f"{path} is a manifest of format 1" in capsys.readouterr().err


def test_unused_run_directories_are_listed_with_their_size_and_not_deleted(directory, tmp_path, capsys):
    text = shown(capsys, tmp_path, "--unused")
    assert str(directory) in text
    assert " kB  " in text
    assert directory.exists()
    assert str(directory) not in shown(capsys, tmp_path, "--unused", "--keep", directory.name + "0" * 48)
    add_milestone(directory, 20)
    assert str(directory) not in shown(capsys, tmp_path, "--unused")
