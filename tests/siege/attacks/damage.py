"""Damaged files: a stage must refuse them, make them again, or end in the same results, and never print a traceback."""

import json


def _flip(content, rng):
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def _edit(content, rng):
    """Change one value of a JSON file, or delete one key."""
    data = json.loads(content)
    parent = data
    while True:
        key = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        child = parent[key]
        if not isinstance(child, dict | list) or not child or rng.random() < 0.2:
            break
        parent = child
    if rng.random() < 0.3:
        del parent[key]
    else:
        parent[key] = rng.choice([0, -1, 10**30, 1.5, None, True, "", "..", "a\nb", [], {}, [[]], {"a": 1}])
    return json.dumps(data).encode()


DAMAGES = {
    "a flipped bit": _flip,
    "cut": lambda content, rng: content[: rng.randrange(len(content))],
    "empty": lambda content, rng: b"",
    "zeros": lambda content, rng: bytes(len(content)),
    "longer": lambda content, rng: content + content[: rng.randint(1, 100)],
}
JSON_DAMAGES = {
    "an edited value": _edit,
    "a list": lambda content, rng: b"[1, 2]",
    "NaN": lambda content, rng: b'{"identity": NaN, "record": {}, "format": 2}',
    "deep JSON": lambda content, rng: b"[" * 100_000,
    "a number of 5,000 digits": lambda content, rng: b'{"format": 2, "record": {}, "identity": %s}' % (b"9" * 5000),
    "a lone surrogate": lambda content, rng: b'{"format": 2, "record": {}, "identity": {"outputs": "\\ud800"}}',
    "NUL": lambda content, rng: b"\0" * 20,
    "not UTF-8": lambda content, rng: b'{"identity": "\xff"}',
}


def attack(finished, scratch, step, rng):
    """Damage one file that the stage may read, and run it. Returns (what was done, how it ended, the fault or None)."""
    place = finished.copy(scratch).before(step)
    path = rng.choice(place.inputs_of(step))
    content = path.read_bytes()
    choices = DAMAGES | (JSON_DAMAGES if path.suffix == ".json" else {})
    name = rng.choice([*choices, "missing", "a directory", "another file's content"])
    if name in choices:
        changed = choices[name](content, rng) if content else b"\0"
        path.write_bytes(changed)
    elif name == "another file's content":
        path.write_bytes(rng.choice(place.inputs_of(step)).read_bytes())
    else:
        path.unlink()
        if name == "a directory":
            path.mkdir()
    done = f"{path.relative_to(place.directory)}: {name}"
    ended = place.run(step)
    if ended.refused:
        return done, ended, None
    if ended.code:
        return done, ended, f"ended with {ended.code} and more than one line"
    made = {name: digest for name, digest in place.results().items() if name.startswith(step.made)}
    expected = finished.results()
    different = next((name for name, digest in made.items() if expected.get(name) != digest), None)
    return done, ended, different and f"accepted, and made another {different}"
