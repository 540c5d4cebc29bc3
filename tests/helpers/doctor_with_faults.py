"""The doctor on two ranks that pose as two hosts. The first argument names the faults of the second host."""

import importlib.metadata
import os
import signal
import sys
import time

import torch.distributed as dist

from stages.lib import stage
from tools.doctor import __main__ as doctor
from tools.doctor import filesystem, hosts, network, runner
from tools.doctor.network import CLOCKS, COLLECTIVES

SECOND = os.environ["RANK"] == "1"


def clock():
    right = time.time
    time.time = lambda: right() + 100


def code():
    hosts.code_digest = lambda _: "another"


def package():
    right = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.1" if name == "sentencepiece" else right(name)


def unseen():
    filesystem.VISIBLE_SECONDS = 0.2
    filesystem._seconds_until_visible = lambda _: None


def wrong_sum():
    right = dist.all_reduce

    def wrong(numbers):
        right(numbers)
        numbers[-1] += 1

    dist.all_reduce = wrong


def deaf():
    network.serve_name = lambda *_: None


def hang():
    dist.all_reduce = lambda *_: time.sleep(600)


def stopped():
    CLOCKS.collect = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)


def gone():
    time.sleep(600)


if __name__ == "__main__":
    os.environ |= {"SLURMD_NODENAME": "node2" if SECOND else "node1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    faults, options = sys.argv[1], sys.argv[2:]
    network.CONNECT_SECONDS = 1.0
    if faults == "gone":
        runner.JOIN_SECONDS, runner.GRACE_SECONDS = 5.0, 2.0
    if faults == "stopped":
        CLOCKS.timeout_seconds, runner.GRACE_SECONDS = 4.0, 2.0
    if faults == "hang":
        COLLECTIVES.timeout_seconds = 5.0
    if SECOND:
        for name in faults.split(","):
            globals()[name]()
    stage.leave(doctor.main(options))
