"""The reader of .metadata: whatever it holds, no code runs, no file outside is read, and the error is one sentence."""

import io
import pickle
import resource
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex, TensorProperties

from stages.lib import manifest
from stages.lib.checkpoints import dcp
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from tests.helpers.hostile_pickles import Call, ran, run_code
from tests.helpers.training import change_commit

FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of two tensors, and a file beside it."""
    directory = tmp_path_factory.mktemp("saved") / "00000003"
    with process_group():
        dcp.save(directory, {"model": {"w": torch.ones(5, 3), "b": torch.ones(4)}}, {"step": 3})
    shutil.copy(directory / "__0_0.distcp", directory.parent / "outside.distcp")
    return directory


@pytest.fixture(scope="module")
def copied(saved):
    """A copy of it whose .metadata the tests replace, in a process of bounded memory."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), limits[1]))
    yield shutil.copytree(saved, saved.parent / "00000004")
    resource.setrlimit(resource.RLIMIT_AS, limits)


def read(directory, content):
    """Read the tensors of a checkpoint with this .metadata, which its commit marker describes."""
    (directory / ".metadata").write_bytes(content)
    names = [path.name for path in directory.iterdir() if path.name != "commit.json"]
    change_commit(directory, files={name: manifest.describe(directory / name) for name in names})
    try:
        return dcp.load_tensors(directory, dcp.keys_of(directory))
    finally:
        assert ran == []


def read_or_refused(directory, content):
    try:
        read(directory, content)
    except UserError as error:
        assert len(str(error).splitlines()) == 1


@FUZZ
@given(st.data())
def test_changed_bytes_are_read_or_refused(saved, copied, data):
    content = bytearray((saved / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    read_or_refused(copied, bytes(content[: data.draw(st.integers(1, 2 * len(content)))]))


VALUES = st.one_of(
    st.sampled_from([None, True, 1.5, -1, 0, 1, 3, 2**62, 2**70, "", "model.b", "/etc/passwd", ".metadata"]),
    st.sampled_from([(), [], {}, torch.Size([5, 3]), torch.Size([0]), torch.Size([10**9] * 3), torch.float32]),
    st.sampled_from([Call(run_code, 1), Call(getattr, torch.Size, "__new__")]),
    st.builds(BytesStorageMetadata),
)


def setters(value):
    """Return functions that each replace one value in nested objects, dictionaries and lists."""
    if isinstance(value, dict):
        places, put = value.items(), value.__setitem__
    elif isinstance(value, list):
        places, put = enumerate(value), value.__setitem__
    elif isinstance(value, TensorProperties) or not hasattr(value, "__dict__"):
        return []
    else:
        return setters(value.__dict__)
    made = []
    for key, item in places:
        made += [lambda new, key=key: put(key, new), *setters(item)]
    return made


@FUZZ
@given(st.data())
def test_changed_objects_are_read_or_refused(saved, copied, data):
    metadata = pickle.loads((saved / ".metadata").read_bytes())
    for put in data.draw(st.lists(st.sampled_from(setters(metadata)), min_size=1, max_size=2)):
        put(data.draw(VALUES))
    read_or_refused(copied, pickle.dumps(metadata))


def bytes_entry(metadata):
    """Turn a tensor into a key whose content DCP would unpickle without a guard."""
    as_tensor = metadata.state_dict_metadata["model.w"]
    metadata.state_dict_metadata["model.w"] = made = BytesStorageMetadata()
    made.__dict__.update(as_tensor.__dict__)
    metadata.storage_data[MetadataIndex("model.w")] = _StorageInfo("code.distcp", 0, 100)


def call(metadata):
    metadata.planner_data = Call(run_code)


def outside(metadata):
    for info in metadata.storage_data.values():
        info.relative_path = "../outside.distcp"


def unlisted(metadata):
    for info in metadata.storage_data.values():
        info.relative_path = "commit.json"


def beyond_the_file(metadata):
    for info in metadata.storage_data.values():
        info.length = 10**6


def beyond_the_tensor(metadata):
    metadata.state_dict_metadata["model.w"].chunks[0].offsets = torch.Size([1, 0])


def missing_part(metadata):
    metadata.state_dict_metadata["model.w"].chunks[0].sizes = torch.Size([4, 3])


def larger_than_its_file(metadata):
    tensor = metadata.state_dict_metadata["model.w"]
    tensor.size = tensor.chunks[0].sizes = torch.Size([10**6, 10**6])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bytes_entry, "may not name '.*BytesStorageMetadata'"),
        (call, "may not name '.*run_code'"),
        (outside, "must lie in a file that commit.json lists, found '../outside.distcp'"),
        (unlisted, "must lie in a file that commit.json lists, found 'commit.json'"),
        (beyond_the_file, "must lie within the [0-9]+ bytes of __0_0.distcp"),
        (beyond_the_tensor, r"a part of a tensor must lie within \[5, 3\]"),
        (missing_part, r"must have the elements of \[5, 3\]"),
        (larger_than_its_file, "a part of the tensor 'model.w' has no place in a file"),
    ],
)
def test_metadata_that_asks_for_more_than_its_tensors_is_refused(saved, copied, change, message):
    metadata = pickle.loads((saved / ".metadata").read_bytes())
    change(metadata)
    torch.save(Call(run_code), copied / "code.distcp")
    with pytest.raises(UserError, match=f"is not the .metadata of a checkpoint: .*{message}"):
        read(copied, pickle.dumps(metadata))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x02r\xff\xff\xff\x7f.", "it numbers an object 2,147,483,647, and has 8 bytes"),
        (b"\x80\x04Np999999999999\n.", "it numbers an object 999,999,999,999, and has 18 bytes"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\x0f\0\0\0.", "expected 68719476735 bytes in a bytes8, but only 1 remain"),
    ],
)
def test_a_pickle_that_asks_for_more_memory_than_it_has_bytes_is_refused(saved, copied, content, said):
    with pytest.raises(UserError, match=f"is not the .metadata of a checkpoint: {said}$"):
        read(copied, content)


@pytest.mark.parametrize("name", ["../outside.distcp", "..", "/etc/passwd", ""])
def test_marker_that_lists_a_file_outside_is_refused(saved, copied, name):
    change_commit(copied, files={name: {"bytes": 1, "sha256": "0" * 64}})
    with pytest.raises(UserError, match=r"commit.json must list files of its directory"):
        dcp.keys_of(copied)


def test_file_without_a_tensor_is_one_sentence(saved, copied):
    content = io.BytesIO()
    torch.save({"a": 1}, content)
    size = (saved / "__0_0.distcp").stat().st_size
    (copied / "__0_0.distcp").write_bytes(content.getvalue().ljust(size, b"\0"))
    with pytest.raises(UserError, match="00000004 could not be read: ") as raised:
        read(copied, (saved / ".metadata").read_bytes())
    assert len(str(raised.value).splitlines()) == 1


def test_planner_loads_no_bytes(monkeypatch, saved):
    from stages.lib.checkpoints import dcp_metadata

    metadata = pickle.loads((saved / ".metadata").read_bytes())
    metadata.state_dict_metadata["model.w"] = BytesStorageMetadata()
    size = (saved / "__0_0.distcp").stat().st_size
    metadata.storage_data[MetadataIndex("model.w")] = _StorageInfo("__0_0.distcp", 0, size)
    monkeypatch.setattr(dcp_metadata, "read", lambda *_: metadata)  # a reader with a hole
    with process_group(), pytest.raises(UserError, match="model.w must be a tensor"):
        dcp.load(saved, {"model": {"w": torch.zeros(5, 3)}})
