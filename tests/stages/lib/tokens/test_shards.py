"""Documents become shards: all of them, in order, however they come, and no shard larger than it may be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.tokens import shards
from stages.lib.tokens.token_stream import TokenStream

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
