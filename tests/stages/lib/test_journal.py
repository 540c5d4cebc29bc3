"""JSON lines that survive a kill at any byte, and the line of progress."""

import pytest

from stages.lib import journal
from stages.lib.errors import UserError


def test_every_cut_of_the_last_line_costs_that_line_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    entries = [{"step": 1, "loss": 5.25}, {"step": 2, "heldout": {"a": {"loss": 1}}}]
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
