"""The steps of a run directory, each once, after kills, skips and rollbacks."""

import json

import pytest

from stages.lib.errors import UserError
from stages.lib.run_directory import history, journal
from stages.lib.run_directory.events import read_events

BATCH = 4


def line(step, clock, samples=None, **more):
    """The entry of a step at time `clock`; `samples`: the first sample that it read."""
    first = (step - 1) * BATCH if samples is None else samples
    return {"step": step, "tokens": step * 8, "loss": 5.0, "samples": [first, first + BATCH], "time": clock} | more


def validation(step, clock):
    return {"step": step, "tokens": step * 8, "validation": {"web": {"loss": 4.0}}, "time": clock}


def event(name, step, clock, **more):
    return {"event": name, "step": step, "time": clock, **more}


def write(directory, entries, events=()):
    for name, lines in (("metrics", entries), ("events", events)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))


def steps(directory):
    """(step, first sample) of the remaining entries, in the order of writing."""
    left = history.entries(directory, read_events(directory))
    return [(entry["step"], entry.get("samples", ["validation"])[0]) for entry in left]


# Steps 3 and 4 were bad: rollback to step 1, continuing after the samples of step 4.
BAD = [line(1, 1), line(2, 2), validation(2, 2.5), line(3, 3, loss=None), line(4, 4, loss=None)]
ROLLBACK = event("rollback", 1, 5, left=5, samples=[4, 16])


def test_rollback_discards_steps_and_their_evaluation_at_once(tmp_path):
    write(tmp_path, BAD, [ROLLBACK])
    assert steps(tmp_path) == [(1, 0)]
    write(tmp_path, [*BAD, line(2, 6, 16), validation(2, 6.5), line(3, 7, 20)], [ROLLBACK])
    assert steps(tmp_path) == [(1, 0), (2, 16), (2, "validation"), (3, 20)]
    write(tmp_path, [line(1, 1), validation(1, 1.5), *BAD[1:]], [ROLLBACK])
    assert steps(tmp_path) == [(1, 0), (1, "validation")]  # of the step that it returns to


def test_steps_repeated_after_a_kill_without_a_rollback_stay(tmp_path):
    # killed after the rollback, before a checkpoint: the same samples are repeated, and are not bad on other ranks
    again = [line(2, 8), line(3, 9), line(4, 10), line(5, 11)]
    write(tmp_path, [*BAD, line(2, 6, 16), *again], [ROLLBACK, event("resume", 1, 7)])
    assert steps(tmp_path) == [(1, 0), (2, 16), (2, 4), (3, 8), (4, 12), (5, 16)]


def test_entries_without_samples_of_older_runs_are_read(tmp_path):
    old = {"step": 2, "tokens": 16, "loss": 5.0, "time": 2}
    write(tmp_path, [old], [ROLLBACK])
    assert list(history.entries(tmp_path, [ROLLBACK])) == [old]


def test_reading_the_end_of_a_long_file_starts_at_a_complete_line(tmp_path):
    write(tmp_path, [line(step, step) for step in range(1, 101)])
    size = (tmp_path / "metrics.jsonl").stat().st_size
    for last_bytes in (200, 201, 250, size - 1, size, size + 1):
        found = [entry["step"] for entry in history.entries(tmp_path, [], last_bytes)]
        assert found == list(range(101 - len(found), 101))
        assert bool(found) and (len(found) == 100) == (last_bytes >= size)


def test_step_is_good_if_it_changed_the_weights():
    bad = ({"loss": None, "skipped": True}, {"loss": 50.0, "skipped": True}, {"loss": None})
    assert history.is_good(line(1, 1)) and not any(history.is_good(line(1, 1, **keys)) for keys in bad)


def test_troubles_repeated_after_a_kill_count_once():
    skip, later = event("skip", 3, 3, samples=[8, 12]), event("skip", 3, 9, samples=[16, 20])
    events = [event("start", 0, 0), skip, ROLLBACK, event("resume", 1, 6), skip, ROLLBACK, later]
    assert history.troubles(events) == ["2 steps skipped", "1 rollback"]
    hangs = [event("hang", step, step) for step in range(1000)]
    assert history.troubles([skip, *hangs]) == ["1 step skipped", "1,000 hangs"]
    assert history.troubles([event("save", 3, 3)]) == []


def read(path):
    return list(journal.read(path, lambda entry: "step" in entry))


def test_incomplete_last_line_loses_only_that_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    entries = [{"step": 1, "loss": 5.25}, {"step": 2, "validation": {"a": {"loss": 1}}}]
    for entry in entries:
        journal.append(path, entry)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) + 1):
        path.write_bytes(whole[:cut])
        journal.end_last_line(path)
        journal.append(path, {"step": 3})
        survived = cut >= len(whole) - 1  # a line without its newline is complete
        assert read(path) == [*entries[: 1 + survived], {"step": 3}], cut


def test_missing_file_has_no_entries_and_one_that_cannot_be_used_is_named(tmp_path):
    journal.end_last_line(tmp_path / "none")
    assert read(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()
    with pytest.raises(UserError, match=r"gone/metrics.jsonl could not be written: No such file"):
        journal.append(tmp_path / "gone" / "metrics.jsonl", {})
    for use in (read, journal.end_last_line):
        with pytest.raises(UserError, match=r"could not be (read|written): Is a directory"):
            use(tmp_path)


def test_damaged_lines_are_skipped_counted_and_named_once(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    good = b'{"step": 1}\n'
    damaged = [b"\xff", b"[1]", b"null", b'"step"', b"{}", b"[" * 100_000, b'{"step": ' + b"9" * 5000 + b"}", b""]
    path.write_bytes(good + b"".join(line + b"\n" for line in damaged) + good + b'{"ste')
    for _ in range(2):
        assert read(path) == [{"step": 1}, {"step": 1}]
    (line,) = caplog.messages  # an incomplete last line is not named: it may be written at this moment
    assert line == f"{path}: skipping 8 lines that are damaged or torn by a kill, the first at byte 12"
    journal.end_last_line(path)
    read(path)
    assert "skipping 9 lines" in caplog.messages[-1]
