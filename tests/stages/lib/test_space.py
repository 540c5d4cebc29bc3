"""Files that do not fit on a disk are refused before they are written, and the check leaves nothing behind."""

import os
import resource
import subprocess
import sys

import pytest

from stages.lib import space
from stages.lib.errors import UserError
from tests.helpers.training import environment

MOUNT = 'mount -t tmpfs -o size=1m tmpfs "$0" && cd "$0" && exec "$@"'
ALLOWED = subprocess.run(
    ["unshare", "-rm", "sh", "-c", MOUNT, "/mnt", "true"], capture_output=True, check=False
).returncode


def on_a_small_disk(directory, script):
    """Run a Python script in a tmpfs of 1 MB (1,048,576 bytes); returns what it prints."""
    if ALLOWED:
        pytest.skip("this machine allows no mount")
    command = ["unshare", "-rm", "sh", "-c", MOUNT, directory, sys.executable, "-c", PRELUDE + script]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


PRELUDE = """
import errno, os
from stages.lib import space
from stages.lib.errors import UserError

def ask(*arguments):
    try:
        space.require(os.getcwd(), *arguments)
        return "it fits"
    except UserError as error:
        return str(error)
"""


def test_what_fits_is_let_through_and_leaves_nothing_and_what_does_not_is_one_sentence(tmp_path):
    space.require(tmp_path, 100_000_000, "a checkpoint", num_files=2)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError) as refused:
        space.require(tmp_path, 10**18, "a checkpoint")
    assert str(refused.value).startswith(f"a checkpoint needs 1000000.0 TB in {tmp_path}, whose file system has ")
    with pytest.raises(UserError, match="missing must be a directory that can be written: No such file"):
        space.require(tmp_path / "missing", 1, "a checkpoint")


def test_a_full_disk_is_said_by_its_free_space(tmp_path):
    said = on_a_small_disk(tmp_path, "print(ask(1_000_000, 'a save'), ask(1_100_000, 'a save'), sep='|')")
    sentence = f"a save needs 1.1 MB in {tmp_path}, whose file system has 1.0 MB free"
    assert said == f"it fits|{sentence}\n"


# A quota is what the file system refuses though its free space would do: here statvfs shows too much of it.
QUOTA = """
small = os.statvfs(".")
os.statvfs = lambda _: os.statvfs_result((*small[:2], 10**9, 10**9, 10**9, *small[5:]))
"""


def test_a_quota_is_found_by_reserving(tmp_path):
    said = on_a_small_disk(tmp_path, QUOTA + "print(ask(1_000_000, 'a save'), ask(1_100_000, 'a save', 3), sep='|')")
    sentence = f"a save needs 1.1 MB in {tmp_path}, which its file system refuses: No space left on device"
    assert said == f"it fits|{sentence}\n"


def test_a_file_system_that_cannot_reserve_is_believed_and_not_written_full(tmp_path):
    script = QUOTA + "space._allocate = lambda *_: errno.EOPNOTSUPP\nprint(ask(1_100_000, 'a save'), os.listdir())"
    assert on_a_small_disk(tmp_path, script) == "it fits []\n"


def test_nothing_of_what_was_reserved_stays(tmp_path):
    script = "print([ask(1_000_000, 'a save', files) for files in (1, 2, 3)], os.listdir(), os.statvfs('.').f_bfree)"
    said = on_a_small_disk(tmp_path, script)
    assert said == f"{['it fits'] * 3} [] {2**20 // os.sysconf('SC_PAGE_SIZE')}\n"


def test_the_limit_on_a_files_size_is_asked_for_each_file(tmp_path):
    script = PRELUDE + "print(ask(90_000, 'a save'), ask(90_000, 'a save', 2), sep='|')"

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
    )
    sentence = f"a save needs files of 90.0 kB in {tmp_path}, but `ulimit -f` allows 60.0 kB per file"
    assert ended.stdout == f"{sentence}|it fits\n"


def test_a_thread_that_a_library_cannot_start_is_out_of_memory():
    assert space.out_of_memory(RuntimeError("Resource temporarily unavailable")).startswith("out of memory: a request")
    assert space.out_of_memory(RuntimeError("the lease is unavailable")) is None
