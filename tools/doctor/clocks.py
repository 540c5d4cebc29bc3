"""Check that the hosts' clocks agree: leases, deadlines and the order of events rely on them."""

from __future__ import annotations

import argparse
import time
from typing import Any

from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import FAIL, OK, WARNING, Reports, Result

NAME, TIMEOUT_SECONDS = "clocks", 20.0
NUM_ROUNDS = 5
WARNING_SECONDS, FAIL_SECONDS = 1.0, 60.0


def collect(rendezvous: Rendezvous, _: argparse.Namespace) -> dict[str, Any] | None:
    """Return {"offsets": {host: (seconds ahead of the first rank's clock, uncertainty in seconds)}} on the first rank.

    The first rank queries each host in turn, and uses the answer with the shortest round trip.
    """
    if rendezvous.rank == 0:
        return {"offsets": {host: _offset(rendezvous, rank) for rank, host in rendezvous.leaders.items() if rank}}
    if rendezvous.is_leader:
        for number in range(NUM_ROUNDS):
            rendezvous.get(f"clock request {rendezvous.rank} {number}", TIMEOUT_SECONDS)
            rendezvous.set(f"clock answer {rendezvous.rank} {number}", now())
    return None


def now() -> float:
    """Return this host's clock, in seconds since 1970."""
    return time.time()


def _offset(rendezvous: Rendezvous, rank: int) -> tuple[float, float]:
    answers = []
    for number in range(NUM_ROUNDS):
        begin = now()
        rendezvous.set(f"clock request {rank} {number}", True)
        remote = rendezvous.get(f"clock answer {rank} {number}", TIMEOUT_SECONDS)
        end = now()
        answers.append(((end - begin) / 2, remote - (begin + end) / 2))
    uncertainty, offset = min(answers)
    return offset, uncertainty


def evaluate(reports: Reports, _: argparse.Namespace) -> list[Result]:
    """Return one result."""
    offsets = reports[0]["offsets"]
    if not offsets:
        return [Result(OK, NAME, "one host: nothing to compare")]
    host, (offset, uncertainty) = max(offsets.items(), key=lambda item: abs(item[1][0]))
    level = FAIL if abs(offset) > FAIL_SECONDS else WARNING if abs(offset) > WARNING_SECONDS else OK
    if level == OK:
        return [Result(OK, NAME, f"{len(offsets) + 1} hosts within {abs(offset) + uncertainty:.3f} s")]
    direction = "ahead of" if offset > 0 else "behind"
    text = f"{host} is {abs(offset):.1f} s {direction} {reports[0]['host']}"
    return [Result(level, NAME, f"{text}: set the clocks (chronyc tracking, timedatectl)")]
