"""Bad command lines: a stage must refuse them in one line, or work; it must never print a traceback."""

import os
import stat

HOSTILE = (
    *("", "-", ".", "/", "..", "~", "a\nb", "name\n", "{braces}", "{0}", "%s", "$(touch owned)", "`touch owned`"),
    *("x" * 300, "\udcff", "texts", "texts/a.jsonl", "missing/file.json", "device"),
    *("-1", "0", "1e400", "NaN", "9" * 5000, "null", "[]", "{}", '{"a": NaN}', '{"a": 1, "a": 2}', "[" * 100_000),
)


def attack(finished, scratch, step, rng):
    """Change one argument. Returns (what was done, how it ended, the fault or None)."""
    place = finished.copy(scratch).before(step)
    device = place.directory / "device"
    os.mkfifo(device)
    arguments = list(step.arguments)
    at = rng.randrange(len(arguments))
    kind = rng.choice(["without", "twice", "replaced"])
    if kind == "without":
        done = f"without {arguments.pop(at)[:60]!r}"
    elif kind == "twice":
        done = f"{arguments[at][:60]!r} twice"
        arguments.insert(at, arguments[at])
    else:
        new = rng.choice(HOSTILE)
        done = f"{arguments[at][:60]!r} replaced by {new[:60]!r}"
        arguments[at] = new
    ended = place.run(step, arguments=arguments)
    if (place.directory / "owned").exists():
        return done, ended, "the shell ran a part of an argument"
    if not stat.S_ISFIFO(device.lstat().st_mode):
        return done, ended, "a file that is not a regular one was replaced"
    if ended.code and not ended.refused:
        return done, ended, f"ended with {ended.code} and more than one line"
    return done, ended, None
