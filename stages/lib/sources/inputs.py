"""What a part of a source is made of: spans of files, by their content, and whether they stay as they are."""

import os

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.sources import records, source, spans, storage


def spans_of_part(recipe, listed, part, parts):
    """The spans of one part of a source. `listed`: [{"name", "bytes"}]."""
    return spans.of_part(listed, part, parts, lambda name: records.can_be_cut(recipe, name))


def states(recipe, listed, chosen):
    """{name: Status} of the files of some spans: before `described` looks at them, for `documents.read` to compare."""
    if recipe.kind.startswith("python-"):
        return {}
    sizes = {file["name"]: file["bytes"] for file in listed.identity["files"]}
    found = {}
    for name in {span.name for span in chosen}:
        if storage.is_address(name):  # `described` asks whether it still is as it was listed
            found[name] = storage.Status(sizes[name], listed.record["etags"][name])
        elif os.path.exists(name):  # `described` says what is gone
            found[name] = storage.status(name)
    return found


def check_unchanged(before):
    """Raise UserError where a file is not as it was: {name: Status}."""
    for name, state in before.items():
        if storage.status(name) != state:
            raise UserError(f"{name} changed while it was read: write it first, and run this again then")


def of_part(recipe, listed, chosen):
    """As `described`, of all that a part's documents depend on: python-prose looks a docstring up in all modules."""
    if recipe.kind == "python-prose":
        chosen = spans.whole(file["name"] for file in listed.identity["files"])
    return described(recipe, listed, chosen)


def described(recipe, listed, chosen):
    """What some spans of a listed source hold, for a manifest: [{"name", "bytes", "sha256"}], of a cut file also the
    bytes [first, end) in it; of what lies behind an address an etag in place of the sha256.

    `listed`: the source's list, a Manifest. Raises UserError where a file is not as it was listed.
    """
    root, sizes = source.root_of(recipe), {file["name"]: file["bytes"] for file in listed.identity["files"]}
    found = []
    for span in chosen:
        name = span.name
        entry = {"name": name} if span.end is None else {"name": name, "first": span.first, "end": span.end}
        if storage.is_address(name):
            described = storage.status(name)
            if described.etag != listed.record["etags"][name]:
                raise UserError(f"{name} must be as it was when {listed.path} was written, and changed; run -R list")
            found.append(entry | {"bytes": described.bytes, "etag": described.etag})
        else:
            manifest.check_size(root / name, sizes[name], listed.path)
            found.append(entry | _of_file(root / name, *records.extent(recipe, span)))
    return found


def _of_file(path, first, end):
    try:
        return manifest.describe(path, first, end)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
