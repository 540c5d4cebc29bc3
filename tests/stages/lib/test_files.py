"""Files and directories that are whole or absent."""

import io
import os
import stat

import pytest

from stages.lib import files
from stages.lib.errors import UserError


class StopError(Exception):
    """The error of a test."""


def test_a_file_takes_its_name_when_it_is_whole(tmp_path):
    with files.atomic(tmp_path / "new" / "a", "w") as file:
        file.write("\u00e9")
        assert not (tmp_path / "new" / "a").exists()
    assert (tmp_path / "new" / "a").read_bytes() == "\u00e9".encode()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(StopError), files.atomic(tmp_path / "a", "w") as file:
        file.write("new")
        raise StopError
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_others_may_read_what_the_umask_allows(tmp_path):
    mask = os.umask(0o027)
    try:
        files.write_json(tmp_path / "a", {})
        with files.atomic_directory(tmp_path / "d"):
            pass
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o750


def test_a_directory_takes_its_name_when_it_is_whole_and_else_the_old_one_stays(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "old").touch()
    with files.atomic_directory(tmp_path / "d") as making:
        (making / "new").touch()
        assert os.listdir(tmp_path / "d") == ["old"]
    assert os.listdir(tmp_path / "d") == ["new"]
    with pytest.raises(StopError), files.atomic_directory(tmp_path / "d") as making:
        (making / "newer").touch()
        raise StopError
    assert os.listdir(tmp_path / "d") == ["new"]
    assert os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("make", [files.atomic, files.atomic_directory])
def test_a_place_that_cannot_be_written_is_the_users_mistake(tmp_path, make):
    (tmp_path / "file").touch()
    expected = pytest.raises(UserError, match=r"file/a must be in a directory that can be written")
    with expected, make(tmp_path / "file" / "a"):
        pass


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"{", "is not valid JSON: line 1: Expecting property name"),
        (b"\xff", "is not valid JSON: it is not UTF-8"),
        (b"\0" * 9, "is not valid JSON: line 1: "),
        (b"[" * 100_000, "is not valid JSON: it is nested too deeply"),
        (b'{"a":' * 100_000, "is not valid JSON: it is nested too deeply"),
        (b"9" * 5000, "is not valid JSON: .* 5000 digits"),
        (b"[NaN]", "is not valid JSON: NaN is not a finite number"),
        (b"[1e999]", "is not valid JSON: 1e999 is not a finite number"),
        (b'["\\ud83d"]', "is not valid JSON: a text has half of a surrogate pair"),
    ],
)
def test_json_that_cannot_be_read_is_named(tmp_path, content, said):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path} {said}"):
        files.read_json(path)


def test_the_files_of_a_manifest_have_a_directory_of_their_own(tmp_path):
    assert files.payload_of(tmp_path / "a.json") == tmp_path / "a"
    with pytest.raises(UserError, match="--output .*/a must end in .json"):
        files.payload_of(tmp_path / "a")


def test_what_is_no_regular_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        expected = pytest.raises(UserError, match=f"{name} is a device")
        with expected, files.atomic(tmp_path / name):
            pass
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("nothing")
    files.write_json(tmp_path / "link", {})
    assert (tmp_path / "link").is_file()


def test_json_keeps_its_order_and_ends_in_a_newline(tmp_path):
    files.write_json(tmp_path / "a", {"b": "\u4e2d", "a": 1.5})
    assert (tmp_path / "a").read_text(encoding="utf-8") == '{\n  "b": "\u4e2d",\n  "a": 1.5\n}\n'
    assert list(files.read_json(tmp_path / "a")) == ["b", "a"]
    (tmp_path / "a.json").write_text('[{"b": "\\ud83d\\ude00"}]')
    assert files.read_json(tmp_path / "a.json") == [{"b": "\U0001f600"}]
    with pytest.raises(UserError, match=r"a\.json must hold a JSON object, and holds a list"):
        files.read_json_object(tmp_path / "a.json")


def test_a_hashing_writer_knows_what_went_through_it(tmp_path):
    behind = io.BytesIO()
    writer = files.HashingWriter(behind)
    assert writer.write(b"ab") == 2
    assert writer.write(memoryview(bytearray(b"cde"))) == 3
    (tmp_path / "a").write_bytes(behind.getvalue())
    assert (writer.bytes, writer.tell()) == (5, 5)
    assert writer.hash.hexdigest() == files.sha256_file(tmp_path / "a") == files.sha256_bytes(b"abcde")


def test_text_that_is_a_formula_to_a_spreadsheet_is_inert_in_csv():
    file = io.StringIO()
    rows = [{"run": name, "=x": -1.5} for name in ("=cmd|' /C calc'!A0", "+1", "-a", "@x", "base")]
    files.write_csv(file, ("run", "=x"), [*rows, {"run": None}])
    names = [line.split(",")[0] for line in file.getvalue().splitlines()]
    assert names == ["run", "'=cmd|' /C calc'!A0", "'+1", "'-a", "'@x", "base", ""]
    assert file.getvalue().startswith("run,'=x\n") and "'-a,-1.5\n" in file.getvalue()
