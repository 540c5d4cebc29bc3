"""A start of a stage under a limit of its process, and the next one without it."""


def attack(finished, scratch, step, prepare, done, documented=()):
    """Run a step after `prepare(rank)` set the limit. Returns (done, how that start ended, the fault or None).

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
