"""Checkpoints by themselves; test_pretrain.py shows them around a training, on several ranks and after damage."""

import os
import pickle
import shutil

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from stages.lib import files
from stages.lib.checkpoints import dcp
from stages.lib.distributed import collectives
from stages.lib.errors import UserError

FACTS = {"step": 3, "recipe": {"a": 1}}


@pytest.fixture(autouse=True)
def group_of_one():
    with collectives.ranks():
        yield


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


def test_what_was_saved_is_loaded(tmp_path):
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    loaded = tensors(fill=0)
    dcp.load(tmp_path / "00000003", loaded)
    alone = dcp.load_tensors(tmp_path / "00000003", ["rng", "model.b", "model.w"])
    for key, expected in flat(tensors()).items():
        for found in (flat(loaded)[key], alone[key]):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
    assert dcp.keys_of(tmp_path / "00000003") == ["model.b", "model.w", "rng"]


def test_commit_says_the_facts_and_the_sha256_of_every_file(tmp_path):
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    commit = dcp.read_commit(tmp_path / "00000003")
    assert FACTS.items() <= commit.items()
    names = {path.name for path in (tmp_path / "00000003").iterdir()}
    assert set(commit["files"]) | {"commit.json"} == names == {"__0_0.distcp", ".metadata", "commit.json"}
    for name, file in commit["files"].items():
        path = tmp_path / "00000003" / name
        assert file == {"bytes": path.stat().st_size, "sha256": files.sha256_file(path)}


def test_equal_tensors_give_equal_bytes_wherever_they_are_saved(tmp_path):
    for name in ("a", "b"):
        dcp.save(tmp_path / name, tensors(), FACTS)
    assert (tmp_path / "a/commit.json").read_bytes() == (tmp_path / "b/commit.json").read_bytes()


def test_save_over_a_torn_checkpoint_leaves_nothing_of_it(tmp_path):
    (tmp_path / "00000003").mkdir()
    (tmp_path / "00000003" / "__9_0.distcp").write_text("torn")
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    assert not (tmp_path / "00000003" / "__9_0.distcp").exists()


def test_kill_at_any_moment_of_a_removal_leaves_no_complete_checkpoint(tmp_path, monkeypatch):
    dcp.save(tmp_path / "checkpoints" / "00000003", tensors(), FACTS)
    assert dcp.complete_steps(tmp_path) == [3]
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before it
    dcp.remove(tmp_path / "checkpoints" / "00000003")
    assert (tmp_path / "checkpoints" / "00000003" / "__0_0.distcp").exists()
    assert dcp.complete_steps(tmp_path) == []


def test_lease_that_was_lost_while_saving_leaves_no_marker(tmp_path):
    class Lost:
        def check(self):
            assert (tmp_path / "00000003" / "__0_0.distcp").exists()
            raise UserError("taken over")

    with pytest.raises(UserError, match="taken over"):
        dcp.save(tmp_path / "00000003", tensors(), FACTS, lease=Lost())
    assert not (tmp_path / "00000003" / "commit.json").exists()


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 2, "files": {}}', "not JSON"])
def test_marker_that_is_none_is_refused(tmp_path, content):
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    (tmp_path / "00000003" / "commit.json").write_text(content)
    with pytest.raises(UserError, match="commit.json must"):
        dcp.read_commit(tmp_path / "00000003")


def test_file_that_vanished_or_changed_is_named(tmp_path):
    directory = tmp_path / "00000003"
    dcp.save(directory, tensors(), FACTS)
    commit = dcp.read_commit(directory)
    dcp.verify(directory, commit)
    content = (directory / "__0_0.distcp").read_bytes()
    (directory / "__0_0.distcp").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert dcp.read_commit(directory) == commit
    with pytest.raises(UserError, match="__0_0.distcp changed since it was written"):
        dcp.verify(directory, commit)
    (directory / "__0_0.distcp").unlink()
    with pytest.raises(UserError, match="__0_0.distcp must have .* bytes by commit.json, found None"):
        dcp.read_commit(directory)
    with pytest.raises(UserError, match="__0_0.distcp could not be read"):
        dcp.verify(directory, commit)
    with pytest.raises(UserError, match="00000003 could not be read"):
        dcp.load(directory, tensors())


def test_key_that_a_checkpoint_lacks_is_named(tmp_path):
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    with pytest.raises(UserError, match="must hold model.x, and does not"):
        dcp.load_tensors(tmp_path / "00000003", ["model.x"])


class Call:
    """What unpickles as the result of a call."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        function, *arguments = self.call
        return function, tuple(arguments)


def by_getattr(member, protocol):
    """How Python 3.11.2 pickles the member of an enumeration."""
    return getattr, (type(member), member.name)


def test_memory_format_is_read_as_python_3_11_2_writes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", by_getattr)
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    assert b"getattr" in (tmp_path / "00000003/.metadata").read_bytes()
    assert dcp.keys_of(tmp_path / "00000003")


@pytest.mark.parametrize("call", [(os.system, "true"), (getattr, torch.Size, "__new__")])
def test_metadata_that_would_run_code_is_refused(tmp_path, call):
    dcp.save(tmp_path / "00000003", tensors(), FACTS)
    (tmp_path / "00000003/.metadata").write_bytes(pickle.dumps(Call(*call)))
    with pytest.raises(UserError, match="may not"):
        dcp.keys_of(tmp_path / "00000003")


def test_marker_in_which_a_number_changed_is_refused(tmp_path):
    dcp.save(tmp_path / "00000003", tensors(), FACTS | {"samples": 36})
    path = tmp_path / "00000003/commit.json"
    path.write_text(path.read_text().replace('"samples": 36', '"samples": 37'))
    with pytest.raises(UserError, match="commit.json changed since it was written"):
        dcp.read_commit(tmp_path / "00000003")
