"""Runs each check on all ranks of a job, and evaluates it on the first. Errors and timeouts become failed results.

The ranks communicate by the key-value store of torchrun, without a process group, since whether one can be initialized
is a check. A store also shows which ranks are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stages.lib.errors import RankLocalError, UserError

if TYPE_CHECKING:
    import torch.distributed as dist

OK, WARNING, FAIL = "ok", "warning", "FAIL"
MAX_NAMES = 4
JOIN_SECONDS = 60.0
GRACE_SECONDS = 10.0  # for the answer of a rank that finished in time
MAX_POLL_SECONDS = 0.05  # between two checks of the store; the first checks follow each other faster
FIRST_CHECK = "nodes"  # the check that reports the ranks which did not join

Reports = Mapping[int, dict[str, Any]]
"""{rank: what the check collected there, with its "host"}."""

Finding = tuple[str, str]
"""(level, text): the text says what was found and, unless the level is OK, what to do."""


class CallTimeout(Exception):
    """The call did not return in time."""


class NoAnswer(Exception):
    """Another rank did not set a key in time."""


@dataclass(frozen=True)
class Result:
    """One line of the doctor."""

    level: str
    name: str
    text: str

    def __str__(self) -> str:
        """Return the line, in columns."""
        return f"{self.level:<8} {self.name:<11}  {self.text}"


@dataclass
class Check:
    """Facts that all ranks collect at once, and the lines that the first rank makes of them."""

    timeout_seconds: float
    """Longest time that `collect` takes."""

    collect: Callable[[Rendezvous, argparse.Namespace], dict[str, Any] | None]
    """Return this rank's data for JSON, or None."""

    lines: Mapping[str, Callable[[Reports, argparse.Namespace], Finding | None]]
    """{name of a line: function that returns its finding, None for no line}; the check has the name of the first."""


class LocalStore:
    """The store of a single process, with the methods of torch.distributed.Store that Rendezvous uses."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self.set, self.get = self._values.__setitem__, self._values.__getitem__

    def check(self, keys: Iterable[str]) -> bool:
        """Return whether all keys are set."""
        return self._values.keys() >= set(keys)


class Rendezvous:
    """The ranks of this job, and the values that they share. A key can be set once and read by all ranks."""

    def __init__(
        self,
        store: dist.Store | LocalStore,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int = 0,
        local_world_size: int = 1,
    ) -> None:
        """`store` has `set`, `get` and `check` of torch.distributed.Store."""
        self._store = store
        self.rank, self.world_size = rank, world_size
        self.local_rank, self.local_world_size = local_rank, local_world_size
        self.host = host_name()
        self.leaders = {0: self.host}
        """{first rank of each host: host name}; the same on all ranks after `CheckRunner.gather_hosts`."""
        self.missing: Sequence[int] = []
        """Ranks that did not join, or stopped answering: later checks do not wait for them."""
        self.activity = ""
        """Current activity of the check, for the message of a timeout."""

    def set(self, key: str, value: Any) -> None:
        """Share a JSON value with all ranks."""
        self._store.set(key, json.dumps(value))

    def get(self, key: str, seconds: float) -> Any:
        """Return the value of a key. Raises NoAnswer if it is not set within `seconds`."""
        until, wait = time.monotonic() + seconds, 0.0005
        # a blocking call would keep the connection from the other threads
        while not self._store.check([key]):
            if time.monotonic() > until:
                raise NoAnswer(f"no answer from another rank in time ({key})")
            time.sleep(wait)
            wait = min(2 * wait, MAX_POLL_SECONDS)
        return json.loads(self._store.get(key))

    @property
    def is_leader(self) -> bool:
        """True for the first rank of each host, which checks what the host's ranks have in common."""
        return self.local_rank == 0


def host_name() -> str:
    """Return the node's name in Slurm, by which it is drained; outside Slurm the machine's name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def call_with_timeout(function: Callable[[], Any], seconds: float) -> Any:
    """Return what `function()` returns. Raises CallTimeout after `seconds`; the call then continues in its thread.

    It uses a thread, not a signal: a call in a library or on a dead file system does not return to Python.
    """
    outcome = {}

    def call() -> None:
        try:
            outcome["value"] = function()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise CallTimeout
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def join() -> Rendezvous:
    """Return the rendezvous of the ranks in the environment of torchrun or mpiexec, or of one rank without them.

    Raises RankLocalError if the first rank's host does not answer.
    """
    if "RANK" not in os.environ:
        return Rendezvous(LocalStore())

    def torchrun_store() -> dist.Store:
        import torch.distributed as dist

        from stages.lib.distributed import process_group

        with process_group.rendezvous():
            store, _, _ = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=JOIN_SECONDS))))
        return dist.PrefixStore("doctor", store)

    numbers = [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    try:
        return Rendezvous(call_with_timeout(torchrun_store, JOIN_SECONDS), *numbers)
    except (CallTimeout, RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        reason = str(error).partition("\n")[0] or f"no answer in {JOIN_SECONDS:.0f} s"
        raise RankLocalError(
            f"rank {numbers[0]} on {host_name()} cannot reach the first rank at {address}: {reason}"
        ) from None


class CheckRunner:
    """Runs checks in order and keeps their results. `arguments`: the options of tools.doctor."""

    def __init__(self, rendezvous: Rendezvous, arguments: argparse.Namespace) -> None:
        self.rendezvous, self.arguments = rendezvous, arguments
        self.results: list[Result] = []
        self._hosts: dict[int, str] = {}
        self.missing: dict[int, str] = {}
        """{rank: name of the check} of the ranks that did not answer; complete on the first rank only."""

    def gather_hosts(self, seconds: float) -> None:
        """Share the host names of all ranks. Ranks that do not join within `seconds` are missing from then on."""
        own = {"host": self.rendezvous.host, "local_rank": self.rendezvous.local_rank}
        begin = time.monotonic()
        reports = self._gather("hosts", own, begin + seconds)
        self._hosts = {rank: report["host"] for rank, report in reports.items()}
        self.missing = dict.fromkeys(self.missing, FIRST_CHECK)
        leaders = [(rank, report["host"]) for rank, report in reports.items() if report["local_rank"] == 0]
        shared = self._broadcast("leaders", [leaders, sorted(self.missing)], begin + 2 * seconds + GRACE_SECONDS)
        self.rendezvous.leaders, self.rendezvous.missing = dict(map(tuple, shared[0])), shared[1]

    def run(self, check: Check) -> list[Result]:
        """Run one check; return its results on the first rank, [] on the others."""
        rendezvous, name = self.rendezvous, next(iter(check.lines))
        rendezvous.activity = ""
        # all ranks begin together, and none works longer than the check's timeout
        until = time.monotonic() + check.timeout_seconds + GRACE_SECONDS
        answer: dict[str, Any]
        try:
            data = call_with_timeout(lambda: check.collect(rendezvous, self.arguments), check.timeout_seconds)
            answer = {"data": data}
        except CallTimeout:
            activity = rendezvous.activity and f" at {rendezvous.activity}"
            answer = {"error": f"timed out after {check.timeout_seconds:.0f} s{activity}"}
        except Exception as error:
            answer = {"error": _sentence(error)}
        answers = self._gather(name, answer, until)
        results = self._evaluate(name, check, answers) if rendezvous.rank == 0 else []
        rendezvous.missing = self._broadcast(f"{name} done", sorted(self.missing), until + GRACE_SECONDS)
        rendezvous.leaders = {rank: host for rank, host in rendezvous.leaders.items() if rank not in rendezvous.missing}
        self.results += results
        return results

    def _evaluate(self, name: str, check: Check, answers: Reports) -> list[Result]:
        if missing := [rank for rank, check_name in self.missing.items() if check_name == name]:
            return [Result(FAIL, name, f"no answer from {self._rank_names(missing)}: check these hosts")]
        by_reason: dict[str, list[int]] = {}
        for rank, answer in answers.items():
            if "error" in answer:
                by_reason.setdefault(answer["error"], []).append(rank)
        if by_reason:
            text = "; ".join(f"{reason} ({self._rank_names(ranks)})" for reason, ranks in by_reason.items())
            return [Result(FAIL, name, text)]
        reports = {rank: {**(answer["data"] or {}), "host": self._hosts[rank]} for rank, answer in answers.items()}
        try:
            findings = {line: evaluate(reports, self.arguments) for line, evaluate in check.lines.items()}
        except Exception as error:
            return [Result(FAIL, name, f"internal error: {_sentence(error)}")]
        return [Result(finding[0], line, finding[1]) for line, finding in findings.items() if finding is not None]

    def _rank_names(self, ranks: Iterable[int]) -> str:
        """Return 'rank 3 on node2' for each rank; without the host if it is unknown."""
        return join_names(
            f"rank {rank}" + (f" on {self._hosts[rank]}" if rank in self._hosts else "") for rank in ranks
        )

    def _gather(self, key: str, value: Any, until: float) -> dict[int, Any]:
        """Return {rank: value} of the ranks that answer in time on the first rank; {} on the others."""
        rendezvous = self.rendezvous
        values: dict[int, Any] = {}
        rendezvous.set(f"{key}/{rendezvous.rank}", value)
        if rendezvous.rank:
            return values
        for rank in range(rendezvous.world_size):
            if rank not in self.missing:
                try:
                    values[rank] = rendezvous.get(f"{key}/{rank}", until - time.monotonic())
                except NoAnswer:
                    self.missing[rank] = key
        return values

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


def join_names(names: Iterable[str]) -> str:
    """Return distinct names as text: 'a, b'; of many, 'a, b, c, d and 12 more'."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - MAX_NAMES} more" if len(distinct) > MAX_NAMES else ""
    return ", ".join(distinct[:MAX_NAMES]) + more


def host_names(reports: Reports, condition: Callable[[dict[str, Any]], object]) -> str:
    """Return the hosts of the ranks whose report meets the condition, as text."""
    return join_names(report["host"] for report in reports.values() if condition(report))


def differences(reports: Reports, value_of: Callable[[dict[str, Any]], Any]) -> str | None:
    """Return '1.0 on node1, 2.0 on node2' if ranks differ in `value_of(report)`; None if they agree."""
    hosts: dict[Any, list[str]] = {}
    for report in reports.values():
        hosts.setdefault(value_of(report), []).append(report["host"])
    if len(hosts) == 1:
        return None
    return ", ".join(f"{value} on {join_names(names)}" for value, names in hosts.items())
