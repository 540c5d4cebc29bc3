"""JSON lines that survive a kill at any byte."""

import pytest

from stages.lib.errors import UserError
from stages.lib.run_directory import journal


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
        assert journal.read(path) == [*entries[: 1 + survived], {"step": 3}], cut


def test_missing_file_has_no_entries_and_is_not_created(tmp_path):
    journal.end_last_line(tmp_path / "none")
    assert journal.read(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_unwritable_file_is_named_in_the_error(tmp_path):
    with pytest.raises(UserError, match=r"gone/metrics.jsonl could not be written: No such file"):
        journal.append(tmp_path / "gone" / "metrics.jsonl", {})
