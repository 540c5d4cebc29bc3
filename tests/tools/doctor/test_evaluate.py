"""Lines on invented reports: faulty file systems, slow networks, small hosts, GPUs."""

import argparse
import contextlib
import socket
import threading
from pathlib import Path

import pytest

from tools.doctor import hosts, network
from tools.doctor.filesystem import DISK_SPACE, FILESYSTEM
from tools.doctor.gpus import GPUS
from tools.doctor.hosts import HOST, NODES, VERSIONS
from tools.doctor.network import CLOCKS, COLLECTIVES
from tools.doctor.runner import FAIL, OK, WARNING

ARGUMENTS = argparse.Namespace(directory=Path("/shared"), need=None)


def lines_of(check, *ranks):
    """The (level, text) of each line of a check."""
    return [evaluate(dict(enumerate(ranks)), ARGUMENTS) for evaluate in check.lines.values()]


def assert_line(line, level, beginning):
    assert (line[0], line[1][: len(beginning)]) == (level, beginning)


FIRST = {"host": "a", "visible": 0.0, "won": True, "link": None, "torn": 0, "lost": 0}
FIRST |= {"place": "/shared", "speed": 500e6, "unseen": []}
SECOND = {"host": "b", "visible": 0.2, "won": False, "link": None, "torn": 0, "lost": 0}


@pytest.mark.parametrize(
    ("first", "second", "level", "text"),
    [
        ({}, {}, OK, "/shared writes 500 MB/s, hard links and renames work, visible on all hosts after 0.2 s"),
        ({"speed": 10e6}, {}, WARNING, "/shared writes 10 MB/s: a checkpoint of 1 B parameters (12 GB) takes 20 min"),
        ({}, {"visible": None}, FAIL, "/shared of a is not visible on b: "),
        ({"unseen": ["b"]}, {}, FAIL, "/shared: files written on b are not visible on a: "),
        ({}, {"won": True}, FAIL, "/shared: an exclusive hard link succeeded on a, b instead of exactly one"),
        ({}, {"torn": 1}, FAIL, "/shared shows incomplete files on b during a rename"),
        ({}, {"lost": 2}, WARNING, "/shared: a file is briefly missing on b during a rename"),
    ],
)
def test_shared_file_system(first, second, level, text):
    assert_line(lines_of(FILESYSTEM, FIRST | first, SECOND | second)[0], level, text)


SUM = {"right": True, "device": "cuda", "bytes": 256_000_000, "bus": 180e9, "latency": 30e-6, "host": "a"}


def test_bus_bandwidth_is_that_of_the_slowest_rank_and_low_only_between_hosts():
    (line,) = lines_of(COLLECTIVES, SUM, SUM | {"host": "b", "bus": 90e9})
    assert line == (OK, "all-reduce of 256 MB with NCCL: bus bandwidth 90.0 GB/s, latency 30 us")
    slow = SUM | {"bus": 2e9}
    assert lines_of(COLLECTIVES, slow, slow | {"host": "b"})[0][0] == WARNING
    assert lines_of(COLLECTIVES, slow, slow)[0][0] == OK


def test_clocks():
    for offset, level, text in (
        (0.2, OK, "3 hosts within 0.201 s"),
        (-1.5, WARNING, "c is 1.5 s behind a: set the clocks"),
        (61.0, FAIL, "c is 61.0 s ahead of a: set the clocks"),
    ):
        offsets = {"b": (0.0, 0.001), "c": (offset, 0.001)}
        assert_line(lines_of(CLOCKS, {"host": "a", "offsets": offsets})[0], level, text)


REPORT = {"host": "a", "directory": "/tmp", "error": None, "free": 50e9, "shared": 30e9, "infiniband": False}
REPORT |= {"open files": 65536, "file size": None, "core": 0, "locked": 65536}


@pytest.mark.parametrize(
    ("changes", "number", "level", "beginning"),
    [
        ({}, 0, OK, "/tmp is writable, 50.0 GB free"),
        ({}, 1, OK, "open files 65,536, file size unlimited, core dumps off"),
        ({"free": 1e6}, 0, WARNING, "/tmp has 1.0 MB free on b: "),
        ({"shared": 64e6}, 0, WARNING, "/dev/shm has 64.0 MB on b: "),
        ({"infiniband": True}, 1, WARNING, "`ulimit -l` is limited on b: "),
    ],
)
def test_directories_and_limits(changes, number, level, beginning):
    assert_line(lines_of(HOST, REPORT, REPORT | {"host": "b"} | changes)[number], level, beginning)


def test_ranks_and_cores_of_hosts_free_inodes_and_an_old_python():
    ranks = [{"host": name, "cores": [0, 1], "threads": 1} for name in ("a", "a", "b")]
    level, text = lines_of(NODES, *ranks)[0]
    assert level == WARNING and "(2 on a, 1 on b)" in text
    ranks = [{"host": "a", "cores": [0, 1], "threads": 2}, {"host": "a", "cores": [2, 3], "threads": 2}]
    assert lines_of(NODES, *ranks)[1] == (OK, "ranks x threads per host: 2 x 2 threads on 4 cores")
    assert_line(lines_of(NODES, ranks[0], ranks[0])[1], WARNING, "more threads than cores, 2 x 2 threads on ")
    report = {"host": "a", "place": "/shared", "free": 1e12, "inodes": 12, "refused": None}
    assert lines_of(DISK_SPACE, report) == [(WARNING, "/shared has only 12 free inodes: delete files")]
    report = {"host": "a", "python": "3.10.2", "new enough": False, "packages": {}, "code": "0" * 64}
    assert lines_of(VERSIONS, report)[0] == (FAIL, "Python must be 3.11 or later, found 3.10.2 on a")


def test_code_digest_covers_names_and_bytes(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    before = hosts.code_digest(tmp_path)
    (tmp_path / "a.pyc").write_text("not code")
    assert hosts.code_digest(tmp_path) == before
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert hosts.code_digest(tmp_path) != before


H100 = "NVIDIA H100 80GB HBM3"
DEVICE = {"index": 0, "name": H100, "free": 84e9, "total": 85e9, "rate": 700e12}
NONE = {"gpus": 0, "devices": []}


def rank(host, device=None, **changes):
    """The report of one of two ranks of a host."""
    report = {"host": host, "gpus": 2, "ranks": 2, "torch": "2.13.0", "cuda": "12.8", "driver": (2, "550.54")}
    return report | {"allocated": None, "devices": [DEVICE | (device or {})]} | changes


def test_equal_and_free_gpus_are_ok():
    (line,) = lines_of(GPUS, rank("a"), rank("b"))
    found = f"2 x {H100}, CUDA 12.8, driver 550.54, at least 84.0 GB free, at least 700 TFLOP/s in bfloat16"
    assert line == (OK, f"{found}, peak 989 TFLOP/s")
    assert lines_of(GPUS, rank("a", {"name": "X1"}))[0][1].endswith("peak unknown: MFU is not reported")


TORCH = "torch finds no GPU on a, but the driver (550.54) lists 2: torch 2.13.0"


@pytest.mark.parametrize(
    ("ranks", "level", "text"),
    [
        ([rank("a", **NONE, driver=None)], OK, "no GPU: training runs on the CPU"),
        ([rank("a", **NONE, torch="2.13.0+cpu", cuda=None)], FAIL, f"{TORCH}+cpu is built without CUDA"),
        ([rank("a", **NONE)], FAIL, f"{TORCH} is built for CUDA 12.8: the driver may be too old"),
        ([rank("a", **NONE, driver=None, allocated="2")], FAIL, "Slurm allocated 2 GPUs per host, but torch finds no"),
        ([rank("a"), rank("b", gpus=1)], FAIL, "hosts have different numbers of GPUs, 2 on a, 1 on b: "),
        ([rank("a", gpus=1, devices=[])], FAIL, "2 ranks per host for 1 GPUs: training would run on the CPU"),
        ([rank("a", ranks=1)], WARNING, "only 1 of 2 GPUs per host would be used: raise `ranks`"),
        ([rank("a"), rank("b", {"free": 70e9})], WARNING, "other processes use 15.0 GB of GPU 0 on b: "),
        ([rank("a", {"free": 5e9})], FAIL, "other processes use 80.0 GB of GPU 0 on a: "),
        ([rank("a"), rank("b", {"name": "NVIDIA A40"})], WARNING, f"GPUs differ: {H100}, NVIDIA A40: "),
        ([rank("a"), rank("b", {"rate": 300e12}), rank("c")], WARNING, "slower than the median of 700 TFLOP/s: GPU 0"),
    ],
)
def test_problems_with_gpus(ranks, level, text):
    assert_line(lines_of(GPUS, *ranks)[0], level, text)


def test_a_host_is_reached_only_if_it_answers_with_its_name():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=network.serve_name, args=(server, "node1"), daemon=True).start()
        assert network.reach(server.getsockname(), "node1") is None
        assert network.reach(server.getsockname(), "node2") == "node1 answers there"


def test_address_is_that_of_the_interface_in_the_environment(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    assert network.own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(OSError, match="No such device"):
        network.own_address()
