"""Results on GPUs, from invented reports."""

import contextlib
import socket
import threading

import pytest

from tools.doctor import gpus, network
from tools.doctor.result import FAIL, OK, WARNING

H100 = "NVIDIA H100 80GB HBM3"
DEVICE = {"index": 0, "name": H100, "free": 84e9, "total": 85e9, "rate": 700e12}


def rank(host, device=None, **changes):
    """The report of one of two ranks of a host."""
    found = {"host": host, "gpus": 2, "ranks": 2, "torch": "2.13.0", "cuda": "12.8", "driver": (2, "550.54")}
    return found | {"allocated": None, "devices": [DEVICE | (device or {})]} | changes


def evaluate(*ranks):
    (result,) = gpus.evaluate(dict(enumerate(ranks)), None)
    return result.level, result.text


def test_equal_and_free_gpus_are_ok():
    assert evaluate(rank("a"), rank("b")) == (
        OK,
        f"2 x {H100}, CUDA 12.8, driver 550.54, at least 84.0 GB free, at least 700 TFLOP/s in bfloat16, "
        "peak 989 TFLOP/s",
    )


def test_gpu_of_unknown_peak():
    assert evaluate(rank("a", {"name": "NVIDIA X1"}))[1].endswith("peak unknown: MFU is not reported")


NONE = {"gpus": 0, "devices": []}


@pytest.mark.parametrize(
    ("ranks", "level", "text"),
    [
        ([rank("a", **NONE, driver=None)], OK, "no GPU: training runs on the CPU"),
        (
            [rank("a", **NONE, torch="2.13.0+cpu", cuda=None)],
            FAIL,
            "torch finds no GPU on a, but the driver (550.54) lists 2: torch 2.13.0+cpu is built without CUDA",
        ),
        (
            [rank("a", **NONE)],
            FAIL,
            "torch finds no GPU on a, but the driver (550.54) lists 2: torch 2.13.0 is built for CUDA 12.8: the driver "
            "may be too old",
        ),
        (
            [rank("a", **NONE, driver=None, allocated="2")],
            FAIL,
            "Slurm allocated 2 GPUs per host, but torch finds none on a: check the driver, and --nv in "
            "CARAVAN_CONTAINER",
        ),
        (
            [rank("a"), rank("b", gpus=1)],
            FAIL,
            "hosts have different numbers of GPUs, 2 on a, 1 on b: request the same number on each",
        ),
        (
            [rank("a", gpus=1, devices=[])],
            FAIL,
            "2 ranks per host for 1 GPUs: training would run on the CPU; set `ranks` to the number of GPUs, and `gres` "
            "on Slurm",
        ),
        ([rank("a", ranks=1)], WARNING, "only 1 of 2 GPUs per host would be used: raise `ranks`"),
        (
            [rank("a"), rank("b", {"free": 70e9})],
            WARNING,
            "other processes use 15.0 GB of GPU 0 on b: end them (nvidia-smi lists them)",
        ),
        (
            [rank("a", {"free": 5e9})],
            FAIL,
            "other processes use 80.0 GB of GPU 0 on a: end them (nvidia-smi lists them)",
        ),
        (
            [rank("a"), rank("b", {"name": "NVIDIA A40"})],
            WARNING,
            f"GPUs differ: {H100}, NVIDIA A40: the slowest determines the speed",
        ),
        (
            [rank("a"), rank("b", {"rate": 300e12}), rank("c")],
            WARNING,
            "slower than the median of 700 TFLOP/s: GPU 0 on b (300 TFLOP/s): exclude it, or see nvidia-smi -q -d "
            "PERFORMANCE",
        ),
    ],
)
def test_problems_with_gpus(ranks, level, text):
    assert evaluate(*ranks) == (level, text)


@pytest.fixture
def address():
    """The address at which a host named node1 answers."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=network._serve_name, args=(server, "node1"), daemon=True).start()
        yield server.getsockname()


def test_host_that_answers_with_its_name_is_reached(address):
    assert network._connect(address, "node1") is None


def test_address_of_another_host_is_reported(address):
    assert network._connect(address, "node2") == "node1 answers there"


def test_address_is_that_of_the_interface_in_the_environment(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    assert network._own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(OSError, match="No such device"):
        network._own_address()
