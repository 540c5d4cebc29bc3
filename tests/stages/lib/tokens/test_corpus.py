"""A stream reads what Arrow reads, across batches and shards, and refuses shards that are not as the manifest says."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.tokens import shards
from stages.lib.tokens.corpus import Corpus
from tests.stages.lib.tokens.made import write_manifest, write_shard

few = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module", params=["uint16", "uint32"])
def written(request, tmp_path_factory):
    """A corpus of three shards of several batches, one shard empty; and its tokens by pyarrow."""
    directory, chance = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    described, expected = [], []
    for number, documents in enumerate((25, 0, 40)):
        path = directory / f"{number}.arrow"
        made = [chance.integers(0, 60000, size) for size in chance.integers(0, 40, documents)]
        described.append(write_shard(path, made, request.param, batch_documents=8))
        with pa.memory_map(str(path)) as file:
            expected += sum(pa.ipc.open_file(file).read_all().column("tokens").to_pylist(), [])
    assert [min(3, len(shard["batches"])) for shard in described] == [3, 0, 3]
    write_manifest(directory, {"a": described}, request.param)
    return directory, expected


@few
@given(data=st.data())
def test_any_range_is_what_arrow_reads(written, data):
    directory, expected = written
    stream = Corpus(directory / "manifest.json").stream("a")
    start = data.draw(st.integers(0, len(expected)))
    count = data.draw(st.integers(0, len(expected)))
    assert len(stream) == len(expected)
    assert stream.read(start, count).tolist() == expected[start : start + count]
    stream.close()


def test_shards_are_opened_when_they_are_read_and_no_more_than_a_stream_may_hold(written):
    directory, expected = written
    stream = Corpus(directory / "manifest.json").stream("a")
    assert not stream._files
    stream.read(0, 5)
    assert [stream.paths[shard] for shard in stream._files] == [str(directory / "0.arrow")]
    stream.max_files = 1
    for start in (0, len(expected) - 5, 0, len(expected) - 5):
        assert stream.read(start, 5).tolist() == expected[start : start + 5]
        assert len(stream._files) == 1
    stream.close()


@few
@given(data=st.data())
def test_many_pieces_are_read_to_where_they_belong(written, data):
    directory, expected = written
    stream = Corpus(directory / "manifest.json").stream("a")
    starts = np.array(data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=9)))
    counts = np.array([data.draw(st.integers(1, min(200, len(expected) - start))) for start in starts.tolist()])
    places = np.cumsum(counts + 1) - counts
    tokens = np.zeros(int(places[-1] + counts[-1]), stream.dtype)
    stream.gather(starts, counts, places, tokens)
    for start, count, place in zip(starts.tolist(), counts.tolist(), places.tolist(), strict=True):
        assert tokens[place - 1] == 0
        assert tokens[place : place + count].tolist() == expected[start : start + count]
    stream.close()


@few
@given(data=st.data())
def test_rows_of_one_length_are_widened_to_where_they_belong(written, data):
    """Rows within a record batch and rows across several, in one piece or with gaps, whatever may be open."""
    directory, expected = written
    stream = Corpus(directory / "manifest.json").stream("a")
    stream.max_files = data.draw(st.integers(1, 5))
    for width in (data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))):
        starts = data.draw(st.lists(st.integers(0, len(expected) - width), max_size=9))
        rows = sorted(data.draw(st.sets(st.integers(0, 12), min_size=len(starts), max_size=len(starts))))
        tokens = np.full((13, width), -1, np.int32)
        stream.gather_rows(np.array(starts, np.int64), np.array(rows, np.int64), tokens)
        for row, start in zip(rows, starts, strict=True):
            assert tokens[row].tolist() == expected[start : start + width]
        assert (np.delete(tokens, rows, axis=0) == -1).all()
    stream.close()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("cut", "{} ends before its last token: it was truncated while it was read"),
        ("emptied", "{} ends before its last token: it was truncated while it was read"),
        ("removed", "{} cannot be read: No such file or directory"),
    ],
)
def test_a_shard_that_is_spoilt_after_the_start_is_named(tmp_path, spoil, said):
    path = tmp_path / "0.arrow"
    shard = write_shard(path, [np.arange(900)], "uint16")
    write_manifest(tmp_path, {"a": [shard]})
    stream, tokens = Corpus(tmp_path / "manifest.json").stream("a"), np.empty((9, 100), np.int32)
    if spoil == "removed":
        path.unlink()
    else:
        stream.read(0, 5)  # the shard is open, as in the middle of a training
        (batch,) = shard["batches"]
        with open(path, "r+b") as file:
            file.truncate(batch["values_at"] + 2 * 850 if spoil == "cut" else 0)
    with pytest.raises(UserError) as raised:
        stream.gather_rows(np.arange(0, 900, 100), np.arange(9), tokens)
    assert str(raised.value) == said.format(path)
    stream.close()


def test_threads_that_read_side_by_side_each_get_what_they_asked_for(written):
    """As the loader and the counters do; with one shard open at a time, each read closes what the other reads."""
    directory, expected = written
    stream = Corpus(directory / "manifest.json").stream("a")
    stream.max_files = 1
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    ends = (0, len(expected) - 20)  # in the first shard, and in the last
    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda start: [stream.read(start, 20).tolist() for _ in range(2000)], ends))
    finally:
        sys.setswitchinterval(before)
        stream.close()
    for start, read in zip(ends, found, strict=True):
        assert all(tokens == expected[start : start + 20] for tokens in read)


@pytest.mark.parametrize("spoil", ["cut", "removed", "no Arrow file"])
def test_a_spoilt_shard_is_named_before_it_is_read(tmp_path, spoil):
    path = tmp_path / "0.arrow"
    shard = write_shard(path, [np.arange(9)], "uint16")
    write_manifest(tmp_path, {"a": [shard]})
    if spoil == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if spoil == "cut" else b"\0" * shard["bytes"])
    with pytest.raises(UserError, match=f"^{path} "):
        Corpus(tmp_path / "manifest.json").stream("a")


@few
@given(st.integers(1, 1 << 20))
def test_the_dtype_holds_every_id(vocab_size):
    assert np.iinfo(shards.dtype_of(vocab_size)).max >= vocab_size - 1
    assert (shards.dtype_of(vocab_size) == "uint16") == (vocab_size <= 65536)
