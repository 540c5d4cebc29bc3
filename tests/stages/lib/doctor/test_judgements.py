"""What the doctor makes of facts that no test machine shows: directories that lie, slow networks, small hosts."""

import argparse
from pathlib import Path

import pytest

from stages.lib.doctor import clocks, collectives, directory, host, nodes, room, versions
from stages.lib.doctor.findings import FAIL, OK, WARNING

ARGUMENTS = argparse.Namespace(directory=Path("/shared"), need=None)
FIRST = {"host": "a", "sees": 0.0, "won": True, "link": None, "reads": 9, "torn": 0, "lost": 0}
FIRST |= {"place": "/shared", "speed": 500e6, "unseen": []}
SECOND = {"host": "b", "sees": 0.2, "won": False, "link": None, "reads": 9, "torn": 0, "lost": 0}


def said(check, *ranks):
    return [(finding.level, finding.text) for finding in check.judge(dict(enumerate(ranks)), ARGUMENTS)]


@pytest.mark.parametrize(
    ("first", "second", "level", "text"),
    [
        ({}, {}, OK, "/shared writes 500 MB/s, hard links and renames work, seen by all hosts after 0.2 s"),
        ({"speed": 10e6}, {}, WARNING, "/shared writes 10 MB/s: 12 GB, the state of 1 B parameters, take 20 minutes"),
        (
            {},
            {"sees": None},
            FAIL,
            "/shared of a is not seen by b: give --directory on a file system that all share",
        ),
        (
            {"unseen": ["b"]},
            {},
            FAIL,
            "/shared: what b wrote is not seen by a: is it mounted read-only?",
        ),
        (
            {},
            {"won": True},
            FAIL,
            "/shared gave one name to a, b, so that two could train in one directory: use another",
        ),
        ({}, {"torn": 1}, FAIL, "/shared shows half a file on b while it is being replaced: use another"),
        (
            {},
            {"lost": 2},
            WARNING,
            "/shared hides a file from b for a moment while it is being replaced: a start may fail, and must be "
            "repeated",
        ),
    ],
)
def test_shared_directory(first, second, level, text):
    assert said(directory, FIRST | first, SECOND | second) == [(level, text)]


SUM = {"right": True, "device": "cuda", "bytes": 256_000_000, "bus": 180e9, "latency": 30e-6}


def test_bandwidth_on_the_bus_is_that_of_the_slowest_rank():
    (finding,) = said(collectives, SUM | {"host": "a"}, SUM | {"host": "b", "bus": 90e9})
    assert finding == (OK, "all-reduce of 256 MB by NCCL: 90.0 GB/s on the bus, 30 us for one number")


def test_gpus_of_several_hosts_that_speak_slowly_are_a_warning_and_of_one_host_not():
    slow = SUM | {"bus": 2e9}
    assert said(collectives, slow | {"host": "a"}, slow | {"host": "b"})[0][0] == WARNING
    assert said(collectives, slow | {"host": "a"}, slow | {"host": "a"})[0][0] == OK


@pytest.mark.parametrize(
    ("offset", "level", "text"),
    [
        (0.2, OK, "3 hosts within 0.201 s"),
        (-1.5, WARNING, "c is 1.5 s behind a: set the clocks (chronyc tracking, timedatectl)"),
        (61.0, FAIL, "c is 61.0 s ahead of a: set the clocks (chronyc tracking, timedatectl)"),
    ],
)
def test_clocks(offset, level, text):
    offsets = {"b": (0.0, 0.001), "c": (offset, 0.001)}
    assert said(clocks, {"host": "a", "offsets": offsets}) == [(level, text)]


HOST = {"host": "a", "directory": "/tmp", "error": None, "free": 50e9, "shared": 30e9, "infiniband": False}
HOST |= {"open files": 65536, "file size": None, "core": 0, "locked": 65536}


@pytest.mark.parametrize(
    ("changes", "which", "level", "beginning"),
    [
        ({}, 0, OK, "/tmp can be written, 50.0 GB free"),
        ({}, 1, OK, "65,536 open files, files of any size, no core dumps"),
        ({"free": 1e6}, 0, WARNING, "/tmp has 1.0 MB free on b: "),
        ({"shared": 64e6}, 0, WARNING, "/dev/shm has 64.0 MB on b: "),
        ({"error": "Read-only file system"}, 0, FAIL, "/tmp cannot be written on b (Read-only file system): "),
        ({"infiniband": True}, 1, WARNING, "`ulimit -l` is limited on b: "),
        ({"open files": 1024}, 1, WARNING, "`ulimit -n` is 1024 on b, should be 4096 or more"),
    ],
)
def test_hosts(changes, which, level, beginning):
    found = said(host, HOST, HOST | {"host": "b"} | changes)[which]
    assert (found[0], found[1][: len(beginning)]) == (level, beginning)


def test_hosts_with_different_numbers_of_ranks_are_a_warning():
    ranks = [{"host": name, "cores": [0, 1], "threads": 1} for name in ("a", "a", "b")]
    level, text = said(nodes, *ranks)[0]
    assert level == WARNING
    assert "(2 on a, 1 on b)" in text


def test_ranks_that_are_bound_to_cores_of_their_own_have_all_of_them():
    ranks = [{"host": "a", "cores": [0, 1], "threads": 2}, {"host": "a", "cores": [2, 3], "threads": 2}]
    assert said(nodes, *ranks)[1] == (OK, "ranks x threads a host: 2 x 2 threads on 4 cores")
    assert said(nodes, ranks[0], ranks[0])[1][0] == WARNING


def test_python_that_is_too_old_fails():
    found = {"host": "a", "python": "3.10.2", "new enough": False, "packages": {}, "code": "0" * 64}
    assert said(versions, found)[0] == (FAIL, "Python must be 3.11 or later, found 3.10.2 on a")


def test_too_few_names_for_files_are_a_warning():
    found = {"host": "a", "place": "/shared", "free": 1e12, "names": 12, "refused": None}
    assert said(room, found) == [(WARNING, "/shared has room for 12 more files only: delete some")]


def test_the_digest_of_the_code_sees_names_and_bytes(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    before = versions.code_digest(tmp_path)
    (tmp_path / "a.pyc").write_text("not code")
    assert versions.code_digest(tmp_path) == before
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert versions.code_digest(tmp_path) != before
