"""What the doctor says of GPUs, of which the facts are made up here."""

import pytest

from stages.lib.doctor import gpus
from stages.lib.doctor.findings import FAIL, OK, WARNING

H100 = "NVIDIA H100 80GB HBM3"
DEVICE = {"index": 0, "name": H100, "free": 84e9, "total": 85e9, "rate": 700e12}


def rank(host, device=None, **changes):
    """The facts of a rank that is one of two on its host."""
    found = {"host": host, "found": 2, "ranks": 2, "torch": "2.13.0", "cuda": "12.8", "driver": (2, "550.54")}
    return found | {"given": None, "devices": [DEVICE | (device or {})]} | changes


def said(*ranks):
    (finding,) = gpus.judge(dict(enumerate(ranks)), None)
    return finding.level, finding.text


def test_gpus_that_are_alike_and_free():
    assert said(rank("a"), rank("b")) == (
        OK,
        f"2 x {H100}, CUDA 12.8, driver 550.54, 84.0 GB free or more, 700 TFLOP/s in bfloat16 or more, "
        "peak 989 TFLOP/s",
    )


def test_a_device_whose_peak_nobody_knows():
    assert said(rank("a", {"name": "NVIDIA X1"}))[1].endswith("peak not known, so that there will be no MFU")


NONE = {"found": 0, "devices": []}


@pytest.mark.parametrize(
    ("ranks", "level", "text"),
    [
        ([rank("a", **NONE, driver=None)], OK, "no GPU: training will be on the CPU"),
        (
            [rank("a", **NONE, torch="2.13.0+cpu", cuda=None)],
            FAIL,
            "torch sees no GPU on a, where the driver (550.54) has 2: torch 2.13.0+cpu is a build for the CPU",
        ),
        (
            [rank("a", **NONE)],
            FAIL,
            "torch sees no GPU on a, where the driver (550.54) has 2: torch 2.13.0 is made for CUDA 12.8: is the "
            "driver too old?",
        ),
        (
            [rank("a", **NONE, driver=None, given="2")],
            FAIL,
            "Slurm gave 2 GPUs to each host, and torch sees none on a: is there a driver, does CARAVAN_CONTAINER have "
            "--nv?",
        ),
        (
            [rank("a"), rank("b", found=1)],
            FAIL,
            "hosts have different numbers of GPUs, 2 on a, 1 on b: ask for as many on each",
        ),
        (
            [rank("a", found=1, devices=[])],
            FAIL,
            "2 ranks a host for 1 GPUs: training would be on the CPU; set `ranks` to the number of GPUs, and `gres` on "
            "Slurm",
        ),
        ([rank("a", ranks=1)], WARNING, "1 of the 2 GPUs of a host would be used: raise `ranks`"),
        (
            [rank("a"), rank("b", {"free": 70e9})],
            WARNING,
            "others hold 15.0 GB of GPU 0 on b: end them, see nvidia-smi",
        ),
        ([rank("a", {"free": 5e9})], FAIL, "others hold 80.0 GB of GPU 0 on a: end them, see nvidia-smi"),
        (
            [rank("a"), rank("b", {"name": "NVIDIA A40"})],
            WARNING,
            f"GPUs differ: {H100}, NVIDIA A40: the slowest sets the speed of all",
        ),
        (
            [rank("a"), rank("b", {"rate": 300e12}), rank("c")],
            WARNING,
            "slower than the others (700 TFLOP/s): GPU 0 on b (300 TFLOP/s): leave it out, or see nvidia-smi -q -d "
            "PERFORMANCE",
        ),
    ],
)
def test_gpus_that_are_not_fit(ranks, level, text):
    assert said(*ranks) == (level, text)
