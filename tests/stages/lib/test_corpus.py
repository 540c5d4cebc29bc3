"""A stream reads what Arrow reads, across batches and shards, and refuses shards that are not as the manifest says."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib import manifest, shards
from stages.lib.corpus import Corpus
from stages.lib.errors import UserError

few = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module", params=["uint16", "uint32"])
def written(request, tmp_path_factory):
    """A corpus of three shards of several batches, one shard empty; and its tokens by pyarrow."""
    directory, chance = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    described, expected = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BATCH_TOKENS", 100)
        for number, documents in enumerate((25, 0, 40)):
            path = directory / f"{number}.arrow"
            made = [chance.integers(0, 60000, size).astype(request.param) for size in chance.integers(0, 40, documents)]
            described.append({"path": path.name, **shards.write(path, made, request.param)})
            with pa.memory_map(str(path)) as file:
                expected += sum(pa.ipc.open_file(file).read_all().column("tokens").to_pylist(), [])
    identity = {"tokenizer": {}, "dtype": request.param, "sources": {"a": {"train": {"shards": described}}}}
    manifest.write(directory / "manifest.json", identity, {})
    return directory, expected


def test_the_shards_have_several_batches(written):
    directory, _ = written
    identity = manifest.read(directory / "manifest.json").identity
    batches = [len(shard["batches"]) for shard in identity["sources"]["a"]["train"]["shards"]]
    assert batches[0] > 2 < batches[2]
    assert batches[1] == 0


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


def test_shards_are_opened_when_they_are_read(written):
    directory, _ = written
    stream = Corpus(directory / "manifest.json").stream("a")
    assert not stream._files
    stream.read(0, 5)
    assert list(stream._files) == [directory / "0.arrow"]
    stream.close()


@pytest.mark.parametrize("spoil", ["cut", "removed", "no Arrow file"])
def test_a_spoilt_shard_is_named_before_it_is_read(tmp_path, spoil):
    path = tmp_path / "0.arrow"
    shard = {"path": "0.arrow", **shards.write(path, [np.arange(9)], "uint16")}
    identity = {"tokenizer": {}, "dtype": "uint16", "sources": {"a": {"train": {"shards": [shard]}}}}
    manifest.write(tmp_path / "manifest.json", identity, {})
    if spoil == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if spoil == "cut" else b"\0" * shard["bytes"])
    with pytest.raises(UserError, match=f"^{path} "):
        Corpus(tmp_path / "manifest.json").stream("a")


@few
@given(st.integers(1, 1 << 20))
def test_the_dtype_holds_every_id(vocabulary):
    assert np.iinfo(shards.dtype_of(vocabulary)).max >= vocabulary - 1
    assert (shards.dtype_of(vocabulary) == "uint16") == (vocabulary <= 65536)
