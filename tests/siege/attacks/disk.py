"""A full disk: no file may grow beyond a size. The stage must say so in one line; its next start ends as ever."""

import resource

from tests.siege.attacks import limited

NAME = "disk"


def attack(finished, scratch, step, rng):
    """Limit the size of files. Returns (what was done, how the limited start ended, the fault or None)."""
    size = int(2 ** rng.uniform(0, 17))

    def prepare(_):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return limited.attack(finished, scratch, step, prepare, f"files of at most {size} bytes")
