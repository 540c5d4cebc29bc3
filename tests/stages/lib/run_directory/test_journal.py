"""JSON lines that survive a kill at any byte, and the line of progress."""

import io
import re

import pytest

from stages.lib import log
from stages.lib.errors import UserError
from stages.lib.run_directory import journal


def test_every_cut_of_the_last_line_costs_that_line_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    entries = [{"step": 1, "loss": 5.25}, {"step": 2, "validation": {"a": {"loss": 1}}}]
    for entry in entries:
        journal.append(path, entry)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) + 1):
        path.write_bytes(whole[:cut])
        journal.mend(path)
        journal.append(path, {"step": 3})
        survived = cut >= len(whole) - 1  # a line that lacks its end alone is whole
        assert journal.read(path) == [*entries[: 1 + survived], {"step": 3}], cut


def test_no_file_has_no_entries_and_needs_no_mending(tmp_path):
    journal.mend(tmp_path / "none")
    assert journal.read(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone/metrics.jsonl could not be written: No such file"):
        journal.append(tmp_path / "gone" / "metrics.jsonl", {})


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.4, "0:07"), (187, "3:07"), (7387.2, "2:03:07"), (359999.6, "100:00:00")]
)
def test_durations_are_read_by_people(seconds, text):
    assert journal.duration(seconds) == text


class Terminal(io.StringIO):
    closed_by_user = False

    def isatty(self):
        return True

    def write(self, text):
        if self.closed_by_user:
            raise OSError(5, "Input/output error")
        return super().write(text)


def terminal_of(monkeypatch, tmp_path):
    """A terminal, before which a step takes a millisecond, and a log. No fixture: pytest changes stderr after those."""
    made, clock = Terminal(), iter(number / 1000 for number in range(10**6))
    monkeypatch.setattr(journal.sys, "stderr", made)
    monkeypatch.setattr(journal.time, "monotonic", lambda: next(clock))
    log.to(tmp_path / "log")
    return made


def test_progress_is_rewritten_on_a_terminal_and_now_and_then_in_the_log(monkeypatch, tmp_path):
    terminal = terminal_of(monkeypatch, tmp_path)
    progress = journal.Progress("step", 60_000, 0)
    for step in range(1, 60_001):
        progress.show(step, "loss 1.0")
    seen, logged = terminal.getvalue(), (tmp_path / "log").read_text()
    assert seen.count("\r\x1b[2Kstep ") == seen.count("step ") == 60_000 // 200 + 1
    assert seen.endswith("step 60000/60000 loss 1.0, 0:00 left\n") and seen.count("\n") == 1
    assert [int(step) for step in re.findall(r"step (\d+)/", logged)] == [1, 30_001, 60_000]


def test_log_line_takes_the_place_of_the_progress(monkeypatch, tmp_path):
    terminal = terminal_of(monkeypatch, tmp_path)
    log.to(None)
    journal.Progress("step", 10, 0).show(1, "loss 1.0")
    log.logger.info("save at step 1")
    assert terminal.getvalue().endswith(" left\r\x1b[2Ksave at step 1\n")


def test_training_goes_on_when_its_terminal_is_closed(monkeypatch, tmp_path):
    terminal = terminal_of(monkeypatch, tmp_path)
    progress = journal.Progress("step", 60_000, 0)
    progress.show(1, "loss 1.0")
    terminal.closed_by_user = True
    for step in range(2, 60_001):
        progress.show(step, "loss 1.0")
    assert "step 60000/60000" in (tmp_path / "log").read_text()
