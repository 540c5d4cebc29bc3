"""JSON lines that survive a kill at any byte."""

import pytest

from stages.lib.errors import UserError
from stages.lib.run_directory import journal


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


def test_missing_file_has_no_entries_and_is_not_created(tmp_path):
    journal.end_last_line(tmp_path / "none")
    assert read(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_unwritable_file_is_named_in_the_error(tmp_path):
    with pytest.raises(UserError, match=r"gone/metrics.jsonl could not be written: No such file"):
        journal.append(tmp_path / "gone" / "metrics.jsonl", {})


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


def test_directory_instead_of_the_file_is_named_in_the_error(tmp_path):
    for use in (read, journal.end_last_line):
        with pytest.raises(UserError, match=r"could not be (read|written): Is a directory"):
            use(tmp_path)
