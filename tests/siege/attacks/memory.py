"""Too little memory: the process may use few more addresses. The stage must say so in one line, or succeed.

SentencePiece ends the process if it cannot start a thread, before Python hears of it: docs/troubleshooting.md says so.
"""

import resource
import signal

from tests.siege.attacks import limited

NAME = "memory"


def attack(finished, scratch, step, rng):
    """Limit the addresses of the process. Returns (what was done, how the limited start ended, the fault or None)."""
    more = int(2 ** rng.uniform(20, 30))

    def prepare(_):
        limit = _addresses() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    return limited.attack(
        finished, scratch, step, prepare, f"at most {more >> 20} MB more of addresses", [-signal.SIGABRT]
    )


def _addresses():
    """Return the bytes of addresses that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
