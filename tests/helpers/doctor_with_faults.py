"""The doctor on two ranks that pose as two hosts. The first argument names the faults of the second host."""

import os
import signal
import sys
import time

import torch.distributed as dist

from stages.lib import stage
from tools.doctor import __main__ as doctor
from tools.doctor import clocks, collectives, filesystem, network, rendezvous, runner, versions

SECOND = os.environ["RANK"] == "1"


def clock():
    clocks.now = lambda: time.time() + 100


def code():
    versions.code_digest = lambda _: "another"


def package():
    versions._version = lambda name: "0.1"


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
    network._serve_name = lambda *_: None


def hang():
    collectives._is_right = lambda *_: time.sleep(600)


def stopped():
    clocks.collect = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)


def gone():
    time.sleep(600)


if __name__ == "__main__":
    os.environ |= {"SLURMD_NODENAME": "node2" if SECOND else "node1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    faults, options = sys.argv[1], sys.argv[2:]
    network.CONNECT_SECONDS = 1.0
    if faults == "gone":
        rendezvous.JOIN_SECONDS, runner.GRACE_SECONDS = 5.0, 2.0
    if faults == "stopped":
        clocks.TIMEOUT_SECONDS, runner.GRACE_SECONDS = 4.0, 2.0
    if faults == "hang":
        collectives.TIMEOUT_SECONDS = 5.0
    if SECOND:
        for name in faults.split(","):
            globals()[name]()
    stage.leave(doctor.main(options))
