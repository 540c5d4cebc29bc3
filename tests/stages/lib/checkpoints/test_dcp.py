"""Saving and loading tensors; test_pretrain.py has trainings on several ranks and with damaged checkpoints."""

import contextlib
import errno
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from stages.lib import files
from stages.lib.checkpoints import dcp
from stages.lib.checkpoints.commit import read_commit, verify
from stages.lib.errors import UserError

pytestmark = pytest.mark.usefixtures("group_of_one")

FACTS = {"step": 3, "recipe": {"a": 1}}


def tensors(fill=None):
    """A float32 matrix, a bfloat16 vector and a number; random, or of one value."""
    generator = torch.Generator().manual_seed(4)
    made = {
        "model": {"w": torch.randn(5, 3, generator=generator), "b": torch.randn(4, generator=generator).bfloat16()},
        "rng": torch.tensor(7),
    }
    return made if fill is None else torch.utils._pytree.tree_map(lambda tensor: torch.full_like(tensor, fill), made)


def flat(made):
    return {"model.w": made["model"]["w"], "model.b": made["model"]["b"], "rng": made["rng"]}


def test_what_was_saved_is_loaded_and_the_commit_has_the_facts_and_the_sha256_of_every_file(tmp_path):
    directory = tmp_path / "00000003"
    directory.mkdir()
    (directory / "__9_0.distcp").write_text("torn")
    dcp.save(directory, tensors(), FACTS)
    loaded = tensors(fill=0)
    dcp.load(directory, loaded)
    alone = dcp.load_tensors(directory, ["rng", "model.b", "model.w"])
    for key, expected in flat(tensors()).items():
        for found in (flat(loaded)[key], alone[key]):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
    assert dcp.keys_of(directory) == ["model.b", "model.w", "rng"]
    commit = read_commit(directory)
    assert FACTS.items() <= commit.items()
    names = {path.name for path in directory.iterdir()}  # nothing is left of the torn one
    assert set(commit["files"]) | {"commit.json"} == names == {"__0_0.distcp", ".metadata", "commit.json"}
    for name, file in commit["files"].items():
        assert file == {"bytes": (directory / name).stat().st_size, "sha256": files.sha256_file(directory / name)}
    dcp.save(tmp_path / "elsewhere", tensors(), FACTS)
    assert read_commit(tmp_path / "elsewhere") == commit


@pytest.fixture
def small_files(monkeypatch):
    """Three files for the 76 bytes of `tensors`."""
    monkeypatch.setattr(dcp, "BYTES_OF_FILE", 20)


@pytest.mark.usefixtures("small_files")
def test_a_large_share_has_several_files_in_the_same_bytes_each_time(tmp_path, monkeypatch):
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    commit = read_commit(tmp_path / "00000003")
    assert sorted(commit["files"]) == [".metadata", *(f"__0_{number}.distcp" for number in range(3))]
    loaded = tensors(fill=0)
    dcp.load(tmp_path / "00000003", loaded)
    assert all(torch.equal(found, flat(tensors())[key]) for key, found in flat(loaded).items())
    verify(tmp_path / "00000003", commit)
    ended, first = threading.Event(), dcp._HashingFileSystem.create_stream

    @contextlib.contextmanager
    def create_stream(self, path, mode):  # the first file ends last
        with first(self, path, mode) as stream:
            yield stream
            if Path(path).name == "__0_0.distcp":
                ended.wait(20)
        if Path(path).name == "__0_2.distcp":
            ended.set()

    monkeypatch.setattr(dcp._HashingFileSystem, "create_stream", create_stream)
    dcp.save(tmp_path / "again", tensors(), FACTS)
    assert ended.is_set() and read_commit(tmp_path / "again") == commit


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("name", ["__0_0.distcp", "__0_2.distcp"])
def test_no_file_may_fail_in_silence(tmp_path, monkeypatch, name, capfd):
    written = files.HashingWriter.write

    def write(self, data):
        if self.file.name.endswith(name):
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(self, data)

    monkeypatch.setattr(files.HashingWriter, "write", write)
    with pytest.raises(UserError, match="00000003 could not be written: .*No space left on device"):
        dcp.save(tmp_path / "00000003", tensors(), FACTS)
    assert list(tmp_path.iterdir()) == [] and capfd.readouterr().err == ""


def test_missing_key_or_file_is_one_sentence(tmp_path):
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    with pytest.raises(UserError, match=" lacks model.x"):
        dcp.load_tensors(tmp_path / "00000003", ["model.x"])
    (tmp_path / "00000003/__0_0.distcp").unlink()
    with pytest.raises(UserError, match="00000003 could not be read"):
        dcp.load(tmp_path / "00000003", tensors())


def by_getattr(member, protocol):
    """Pickle like Python 3.11.2 the member of an enumeration."""
    return getattr, (type(member), member.name)


def test_memory_format_is_read_as_python_3_11_2_writes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", by_getattr)
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    assert b"getattr" in (tmp_path / "00000003/.metadata").read_bytes()
    assert dcp.keys_of(tmp_path / "00000003")
