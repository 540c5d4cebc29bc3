"""The result of a check: a level, a name and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

OK, WARNING, FAIL = "ok", "warning", "FAIL"
MAX_NAMES = 4

Reports = Mapping[int, dict[str, Any]]
"""{rank: what the check collected there, with its "host"}."""


@dataclass(frozen=True)
class Result:
    """One line of the doctor. `text` says what was found and, unless the level is OK, what to do."""

    level: str
    name: str
    text: str

    def __str__(self) -> str:
        """Return the line, in columns."""
        return f"{self.level:<8} {self.name:<11}  {self.text}"


def join_names(names: Iterable[str]) -> str:
    """Return distinct names as text: 'a, b'; of many, 'a, b, c, d and 12 more'."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - MAX_NAMES} more" if len(distinct) > MAX_NAMES else ""
    return ", ".join(distinct[:MAX_NAMES]) + more


def host_names(reports: Reports, condition: Callable[[dict[str, Any]], object] = lambda _: True) -> str:
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
