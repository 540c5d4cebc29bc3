"""What a check found: a level, a name and a sentence."""

from dataclasses import dataclass

OK, WARNING, FAIL = "ok", "warning", "FAIL"
MOST_NAMES = 4


@dataclass(frozen=True)
class Finding:
    """One line of the doctor. `text` says what was found and, unless the level is OK, what to do."""

    level: str
    name: str
    text: str

    def __str__(self):
        """The line, in columns."""
        return f"{self.level:<8} {self.name:<11}  {self.text}"


def listed(names):
    """Names as a person reads them, each once: 'a, b', and of many 'a, b, c, d and 12 more'."""
    once = list(dict.fromkeys(names))
    more = f" and {len(once) - MOST_NAMES} more" if len(once) > MOST_NAMES else ""
    return ", ".join(once[:MOST_NAMES]) + more


def hosts(facts, wanted=lambda _: True):
    """The hosts of the ranks whose facts are `wanted`, as a person reads them. `facts`: {rank: data with a host}."""
    return listed(found["host"] for found in facts.values() if wanted(found))


def told_apart(facts, value_of):
    """'1.0 on node1, 2.0 on node2' where ranks differ in `value_of(facts)`; None where they agree."""
    values = dict.fromkeys(value_of(found) for found in facts.values())
    if len(values) == 1:
        return None
    return ", ".join(f"{value} on {hosts(facts, lambda found, v=value: value_of(found) == v)}" for value in values)
