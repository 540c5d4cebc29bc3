"""Results from invented reports: faulty file systems, slow networks, small hosts."""

import argparse
from pathlib import Path

import pytest

from tools.doctor import clocks, collectives, disk_space, filesystem, host, nodes, versions
from tools.doctor.result import FAIL, OK, WARNING

ARGUMENTS = argparse.Namespace(directory=Path("/shared"), need=None)
FIRST = {"host": "a", "visible": 0.0, "won": True, "link": None, "reads": 9, "torn": 0, "lost": 0}
FIRST |= {"place": "/shared", "speed": 500e6, "unseen": []}
SECOND = {"host": "b", "visible": 0.2, "won": False, "link": None, "reads": 9, "torn": 0, "lost": 0}


def evaluate(check, *ranks):
    return [(result.level, result.text) for result in check.evaluate(dict(enumerate(ranks)), ARGUMENTS)]


@pytest.mark.parametrize(
    ("first", "second", "level", "text"),
    [
        ({}, {}, OK, "/shared writes 500 MB/s, hard links and renames work, visible on all hosts after 0.2 s"),
        (
            {"speed": 10e6},
            {},
            WARNING,
            "/shared writes 10 MB/s: a checkpoint of 1 B parameters (12 GB) takes 20 minutes",
        ),
        (
            {},
            {"visible": None},
            FAIL,
            "/shared of a is not visible on b: --directory must be on a shared file system",
        ),
        (
            {"unseen": ["b"]},
            {},
            FAIL,
            "/shared: files written on b are not visible on a: check whether it is mounted read-only",
        ),
        (
            {},
            {"won": True},
            FAIL,
            "/shared: an exclusive hard link succeeded on a, b instead of exactly one, so leases are not safe: use "
            "another file system",
        ),
        ({}, {"torn": 1}, FAIL, "/shared shows incomplete files on b during a rename: use another file system"),
        (
            {},
            {"lost": 2},
            WARNING,
            "/shared: a file is briefly missing on b during a rename: a start may fail and must be repeated",
        ),
    ],
)
def test_shared_file_system(first, second, level, text):
    assert evaluate(filesystem, FIRST | first, SECOND | second) == [(level, text)]


SUM = {"right": True, "device": "cuda", "bytes": 256_000_000, "bus": 180e9, "latency": 30e-6}


def test_bus_bandwidth_is_that_of_the_slowest_rank():
    (result,) = evaluate(collectives, SUM | {"host": "a"}, SUM | {"host": "b", "bus": 90e9})
    assert result == (OK, "all-reduce of 256 MB with NCCL: bus bandwidth 90.0 GB/s, latency 30 us")


def test_slow_network_between_hosts_is_a_warning_and_within_a_host_is_not():
    slow = SUM | {"bus": 2e9}
    assert evaluate(collectives, slow | {"host": "a"}, slow | {"host": "b"})[0][0] == WARNING
    assert evaluate(collectives, slow | {"host": "a"}, slow | {"host": "a"})[0][0] == OK


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
    assert evaluate(clocks, {"host": "a", "offsets": offsets}) == [(level, text)]


HOST = {"host": "a", "directory": "/tmp", "error": None, "free": 50e9, "shared": 30e9, "infiniband": False}
HOST |= {"open files": 65536, "file size": None, "core": 0, "locked": 65536}


@pytest.mark.parametrize(
    ("changes", "which", "level", "beginning"),
    [
        ({}, 0, OK, "/tmp is writable, 50.0 GB free"),
        ({}, 1, OK, "open files 65,536, file size unlimited, core dumps off"),
        ({"free": 1e6}, 0, WARNING, "/tmp has 1.0 MB free on b: "),
        ({"shared": 64e6}, 0, WARNING, "/dev/shm has 64.0 MB on b: "),
        ({"error": "Read-only file system"}, 0, FAIL, "/tmp is not writable on b (Read-only file system): "),
        ({"infiniband": True}, 1, WARNING, "`ulimit -l` is limited on b: "),
        ({"open files": 1024}, 1, WARNING, "`ulimit -n` must be at least 4096, is 1024 on b"),
    ],
)
def test_hosts(changes, which, level, beginning):
    found = evaluate(host, HOST, HOST | {"host": "b"} | changes)[which]
    assert (found[0], found[1][: len(beginning)]) == (level, beginning)


def test_hosts_with_different_numbers_of_ranks_are_a_warning():
    ranks = [{"host": name, "cores": [0, 1], "threads": 1} for name in ("a", "a", "b")]
    level, text = evaluate(nodes, *ranks)[0]
    assert level == WARNING
    assert "(2 on a, 1 on b)" in text


def test_cores_of_ranks_with_disjoint_affinity_are_added():
    ranks = [{"host": "a", "cores": [0, 1], "threads": 2}, {"host": "a", "cores": [2, 3], "threads": 2}]
    assert evaluate(nodes, *ranks)[1] == (OK, "ranks x threads per host: 2 x 2 threads on 4 cores")
    assert evaluate(nodes, ranks[0], ranks[0])[1][0] == WARNING


def test_old_python_fails():
    found = {"host": "a", "python": "3.10.2", "new enough": False, "packages": {}, "code": "0" * 64}
    assert evaluate(versions, found)[0] == (FAIL, "Python must be 3.11 or later, found 3.10.2 on a")


def test_too_few_free_inodes_are_a_warning():
    found = {"host": "a", "place": "/shared", "free": 1e12, "inodes": 12, "refused": None}
    assert evaluate(disk_space, found) == [(WARNING, "/shared has only 12 free inodes: delete files")]


def test_code_digest_covers_names_and_bytes(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    before = versions.code_digest(tmp_path)
    (tmp_path / "a.pyc").write_text("not code")
    assert versions.code_digest(tmp_path) == before
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert versions.code_digest(tmp_path) != before
