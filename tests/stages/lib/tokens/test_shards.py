"""Documents become shards: all of them, in order, however they come, and no shard larger than it may be."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.tokens import shards
from stages.lib.tokens.corpus import TokenStream

LIMIT = 10  # tokens a shard

calls = st.lists(st.lists(st.integers(1, 2 * LIMIT), max_size=6), max_size=6)  # a document has its EOS at least


@settings(max_examples=40, deadline=None)
@given(calls)
def test_every_document_is_written_once_in_order(tmp_path_factory, lengths):
    directory, first, written = tmp_path_factory.mktemp("shards"), 0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_BYTES", 2 * LIMIT)
        writer = shards.Writer(directory, "a", "uint16")
        for given_ in lengths:
            total = sum(given_)
            writer.add(np.arange(first, first + total, dtype=np.uint16), given_, given_)
            first += total
        written = writer.finish()
    stream = TokenStream(directory, written, "uint16")
    assert stream.read(0, first + 1).tolist() == list(range(first))
    assert sum(shard["documents"] for shard in written) == sum(map(len, lengths))
    assert sum(shard["text_bytes"] for shard in written) == first
    assert all(shard["tokens"] <= LIMIT or shard["documents"] == 1 for shard in written)
    stream.close()


@settings(max_examples=40, deadline=None)
@given(calls, st.integers(1, 3))
def test_documents_are_shuffled_whole_within_a_shard_by_its_seed(tmp_path_factory, lengths, at_once):
    directory, documents = tmp_path_factory.mktemp("shards"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "ORDERED_DOCUMENTS", at_once)
        writer = shards.Writer(directory, "a", "uint16", [7])
        for given_ in lengths:
            added = [np.full(length, len(documents) + number) for number, length in enumerate(given_)]
            writer.add(np.concatenate(added or [[]]).astype(np.uint16), given_, given_)
            documents += [document.tolist() for document in added]
        (shard,) = writer.finish()
    order = np.random.Generator(np.random.PCG64([7])).permutation(len(documents))
    with pa.ipc.open_file(directory / shard["path"]) as reader:
        found = reader.read_all().column("tokens").to_pylist()
    assert found == [documents[number] for number in order]


def test_writing_a_shard_does_not_import_pandas(tmp_path):
    code = (
        "import sys, pathlib, numpy as np; from stages.lib.tokens import shards\n"
        "writer = shards.Writer(pathlib.Path(sys.argv[1]), 'a', 'uint16', [0])\n"
        "writer.add(np.arange(5, dtype='uint16'), [2, 3], [2, 3]); writer.finish()\n"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
