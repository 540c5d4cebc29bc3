"""Read what stages made: what manifests hold, and the files of parts; and change it."""

import json
from collections import Counter

from stages.lib import manifest


def identity_of(path):
    """The identity of a manifest."""
    return json.loads(path.read_text())["identity"]


def record_of(path):
    """The record of a manifest."""
    return json.loads(path.read_text())["record"]


def documents_of(part):
    """Return the number of documents of a part, in both splits."""
    return sum(identity_of(part)[split]["documents"] for split in ("train", "validation"))


def filtered_of(part):
    """Return the numbers of malformed records and filtered documents of a part, by reason."""
    return record_of(part)["dropped"]


def held_out(*parts):
    """The texts of the validation documents of some parts."""
    return [json.loads(line)["text"] for part in parts for line in (part.with_suffix("") / "validation.jsonl").open()]


def contents_of(parts):
    """(Number of training documents, validation texts, numbers of dropped documents by reason) of some parts."""
    dropped = Counter()
    for part in parts:
        dropped.update(filtered_of(part))
    return sum(identity_of(part)["train"]["documents"] for part in parts), held_out(*parts), dict(dropped)


def shards_of(part):
    """The bytes of the shards of a part, by its manifest."""
    return [path.read_bytes() for path in sorted(part.with_suffix("").glob("*.arrow"))]


def names_of(source_list):
    """The names of the files in the list of a source."""
    return [file["name"] for file in identity_of(source_list)["files"]]


def rewrite(path, record=None, **identity):
    """Change keys of a manifest; return it as it is then."""
    made = manifest.read(path)
    manifest.write(path, made.stage, made.identity | identity, made.record | (record or {}))
    return manifest.read(path)
