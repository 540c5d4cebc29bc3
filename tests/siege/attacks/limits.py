"""Too little room: a stage must say so in one line, or succeed, and its next start ends as ever."""

import resource
import signal


def disk(finished, scratch, step, rng):
    """No file may grow beyond a size. Returns (what was done, how that start ended, the fault or None)."""
    size = int(2 ** rng.uniform(0, 17))

    def prepare(_):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return _attack(finished, scratch, step, prepare, f"files of at most {size} bytes")


def memory(finished, scratch, step, rng):
    """The process may use few more addresses. Returns (what was done, how that start ended, the fault or None).

    SentencePiece ends the process if it cannot start a thread, before Python hears of it: docs/troubleshooting.md says
    so.
    """
    more = int(2 ** rng.uniform(20, 30))

    def prepare(_):
        with open("/proc/self/statm", encoding="ascii") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    return _attack(finished, scratch, step, prepare, f"at most {more >> 20} MB more of addresses", [-signal.SIGABRT])


def _attack(finished, scratch, step, prepare, done, documented=()):
    """Run a step after `prepare(rank)` set the limit, then without it.

    `documented`: exit codes that docs/troubleshooting.md explains, and that are not faults.
    """
    place = finished.copy(scratch).before(step)
    ended = place.run(step, prepare)
    if ended.code and not ended.refused and ended.code not in documented:
        return done, ended, f"ended with {ended.code} and more than one line"
    again = place.run(step)
    if again.code:
        return done, again, f"the next start ended with {again.code}"
    different = {name for name, digest in finished.results().items() if place.results().get(name) != digest}
    return done, ended, f"changed {min(different)}" if different else None
