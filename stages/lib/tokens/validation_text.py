"""The validation documents of a corpus, as text."""

import json
from collections.abc import Iterator

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest


def documents(corpus: Manifest, source: str) -> Iterator[tuple[str, str]]:
    """Yield (id, text) of a source's validation documents, in the order of its validation shards.

    Raises UserError if a file is missing or changed since the manifest was written.
    """
    for described in corpus.identity["sources"][source]["validation"]["texts"]:
        path = corpus.directory / described["path"]
        manifest.check_size(path, described["bytes"], corpus.path)
        if files.sha256_file(path) != described["sha256"]:
            raise UserError(f"{path} changed since {corpus.path} was written; delete both and run the workflow again")
        with open(path, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                document = json.loads(line)
                yield document["id"], document["text"]
