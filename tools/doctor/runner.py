"""Runs each check on all ranks, and evaluates it on the first. Errors and timeouts become failed results."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any, Protocol

from stages.lib.errors import RankLocalError, UserError
from tools.doctor.rendezvous import CallTimeout, NoAnswer, Rendezvous, call_with_timeout
from tools.doctor.result import FAIL, Reports, Result, join_names

FIRST_CHECK = "nodes"  # the check that reports the ranks which did not join
GRACE_SECONDS = 10.0  # for the answer of a rank that finished in time


class Check(Protocol):
    """A module that is a check.

    `collect` runs on all ranks at once, for at most TIMEOUT_SECONDS, and returns data for JSON, or None. `evaluate`
    runs on the first rank only.
    """

    NAME: str
    TIMEOUT_SECONDS: float

    def collect(self, rendezvous: Rendezvous, arguments: argparse.Namespace, /) -> dict[str, Any] | None:
        """Return this rank's data."""

    def evaluate(self, reports: Reports, arguments: argparse.Namespace, /) -> list[Result]:
        """Return the results."""


class CheckRunner:
    """Runs checks in order and keeps their results."""

    def __init__(self, rendezvous: Rendezvous, arguments: argparse.Namespace) -> None:
        """`arguments`: the options of tools.doctor."""
        self.rendezvous, self.arguments = rendezvous, arguments
        self.results: list[Result] = []
        self._hosts: dict[int, str] = {}
        self.missing: dict[int, str] = {}
        """{rank: name of the check} of the ranks that did not answer; complete on the first rank only."""

    def gather_hosts(self, seconds: float) -> None:
        """Share the host names of all ranks. Ranks that do not join within `seconds` are missing from then on."""
        own = {"host": self.rendezvous.host, "local_rank": self.rendezvous.local_rank}
        begin = time.monotonic()
        found = self._gather("hosts", own, begin + seconds)
        self._hosts = {rank: report["host"] for rank, report in found.items()}
        self.missing = dict.fromkeys(self.missing, FIRST_CHECK)
        leaders = [(rank, report["host"]) for rank, report in found.items() if report["local_rank"] == 0]
        shared = self._broadcast("leaders", [leaders, sorted(self.missing)], begin + 2 * seconds + GRACE_SECONDS)
        self.rendezvous.leaders, self.rendezvous.missing = dict(map(tuple, shared[0])), shared[1]

    def run(self, check: Check) -> list[Result]:
        """Run one check; return its results on the first rank, [] on the others."""
        self.rendezvous.activity = ""
        # all ranks begin together, and none works longer than the check's timeout
        until = time.monotonic() + check.TIMEOUT_SECONDS + GRACE_SECONDS
        answer: dict[str, Any]
        try:
            answer = {
                "data": call_with_timeout(lambda: check.collect(self.rendezvous, self.arguments), check.TIMEOUT_SECONDS)
            }
        except CallTimeout:
            activity = self.rendezvous.activity and f" at {self.rendezvous.activity}"
            answer = {"error": f"timed out after {check.TIMEOUT_SECONDS:.0f} s{activity}"}
        except Exception as error:
            answer = {"error": _sentence(error)}
        answers = self._gather(check.NAME, answer, until)
        results = self._evaluate(check, answers) if self.rendezvous.rank == 0 else []
        self.rendezvous.set_missing(self._broadcast(f"{check.NAME} done", sorted(self.missing), until + GRACE_SECONDS))
        self.results += results
        return results

    def _evaluate(self, check: Check, answers: Reports) -> list[Result]:
        missing = [rank for rank, name in self.missing.items() if name == check.NAME]
        if missing:
            return [Result(FAIL, check.NAME, f"no answer from {self.rank_names(missing)}: check these hosts")]
        if errors := {rank: answer["error"] for rank, answer in answers.items() if "error" in answer}:
            by_reason: dict[str, list[int]] = {}
            for rank, reason in errors.items():
                by_reason.setdefault(reason, []).append(rank)
            text = "; ".join(f"{reason} ({self.rank_names(ranks)})" for reason, ranks in by_reason.items())
            return [Result(FAIL, check.NAME, text)]
        reports = {rank: {**(answer["data"] or {}), "host": self._hosts[rank]} for rank, answer in answers.items()}
        try:
            return check.evaluate(reports, self.arguments)
        except Exception as error:
            return [Result(FAIL, check.NAME, f"internal error: {_sentence(error)}")]

    def rank_names(self, ranks: Iterable[int]) -> str:
        """Return 'rank 3 on node2' for each rank; without the host if it is unknown."""
        return join_names(
            f"rank {rank}" + (f" on {self._hosts[rank]}" if rank in self._hosts else "") for rank in ranks
        )

    def _gather(self, key: str, value: Any, until: float) -> dict[int, Any]:
        """Return {rank: value} of the ranks that answer in time on the first rank; {} on the others."""
        rendezvous = self.rendezvous
        found: dict[int, Any] = {}
        rendezvous.set(f"{key}/{rendezvous.rank}", value)
        if rendezvous.rank:
            return found
        for rank in range(rendezvous.world_size):
            if rank not in self.missing:
                try:
                    found[rank] = rendezvous.get(f"{key}/{rank}", until - time.monotonic())
                except NoAnswer:
                    self.missing[rank] = key
        return found

    def _broadcast(self, key: str, value: Any, until: float) -> Any:
        """Return the first rank's value on all ranks. Raises RankLocalError if it does not answer in time."""
        if self.rendezvous.rank == 0:
            self.rendezvous.set(key, value)
            return value
        try:
            return self.rendezvous.get(key, until - time.monotonic())
        except NoAnswer:
            raise RankLocalError(
                f"rank {self.rendezvous.rank} on {self.rendezvous.host} got no answer from the first rank"
            ) from None


def _sentence(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, (UserError, NoAnswer)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
