"""A full disk: no file may grow beyond a size. The stage must say so in one line; its next start ends as ever."""

import resource

NAME = "disk"


def attack(finished, scratch, step, rng):
    """Limit the size of files. Returns (what was done, how the limited start ended, the fault or None)."""
    place = finished.copy(scratch).before(step)
    size = int(2 ** rng.uniform(0, 17))

    def prepare(_):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    done = f"files of at most {size} bytes"
    ended = place.run(step, prepare)
    if ended.code and not ended.refused:
        return done, ended, f"ended with {ended.code} and more than one line"
    again = place.run(step)
    if again.code:
        return done, again, f"the next start ended with {again.code}"
    different = {name for name, digest in finished.results().items() if place.results().get(name) != digest}
    return done, ended, f"changed {min(different)}" if different else None
