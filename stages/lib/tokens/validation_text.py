"""The validation documents of a corpus, as text."""

import itertools
import json
from collections.abc import Iterator

import numpy as np

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.sources.documents import Document
from stages.lib.sources.entries import VALIDATION
from stages.lib.tokens import bos_eos
from stages.lib.tokens.bos_eos import Encode
from stages.lib.tokens.corpus import Corpus


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


def compared(corpus: Corpus, encode: Encode, num_documents: int = 8) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (source, id, text, True if `encode` gives the tokens of the shards) of each source's first documents.

    Pre-tokenized sources are left out: their ids need not be those of their text. A source ends with the first document
    that differs, whose length in the shards is not known.
    """
    tokenizer = corpus.tokenizer
    for source in sorted(corpus.sources):
        if "ids" in corpus.sources[source]:
            continue
        stream, at = corpus.stream(source, VALIDATION), 0
        for name, text in itertools.islice(documents(corpus.manifest, source), num_documents):
            (ids,) = bos_eos.ids_of([Document(name, text, VALIDATION)], encode, np.int64)
            expected = [*[tokenizer["bos"]] * tokenizer["bos_added"], *ids.tolist(), tokenizer["eos"]]
            is_same = at + len(expected) <= len(stream) and stream.read(at, len(expected)).tolist() == expected
            yield source, name, text, is_same
            if not is_same:
                break
            at += len(expected)
        stream.close()
