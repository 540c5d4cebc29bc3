"""Checkpoints: torch.distributed.checkpoint (DCP) with sha256 of every file and a commit marker that is written last.

    checkpoints/00000300/__0_0.distcp ...   tensors, one file a rank: `model.<FMS key>`, `optimizer.<FMS key>.<moment>`, `rng`
    checkpoints/00000300/.metadata          which tensor lies where
    checkpoints/00000300/commit.json        format, step, samples, recipe, corpus, tokenizer, files with bytes and sha256

A directory without commit.json, or with a file of another size or hash, is torn: it is skipped, never read.
"""

import contextlib
import io
import os
import pickle
import shutil
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.log import logger

FORMAT = 1
COMMIT = "commit.json"
MILESTONE = "milestone.json"  # a copy of the milestone's manifest: this checkpoint is kept for ever

# what DCP's .metadata may name; anything else in it is refused, since a pickle can run code
ALLOWED = {
    "torch": {"Size", "device", "float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "strided"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}


def directory_of(run_directory, step):
    """Where the checkpoint of a step lies."""
    return Path(run_directory) / "checkpoints" / f"{step:08d}"


def save(directory, tensors, facts, group=None):
    """Write a checkpoint; all ranks of `group` (default: all ranks) call it together.

    `tensors`: nested dictionary of tensors and DTensors. `facts`: what commit.json says beside the files. When it returns,
    the checkpoint is on the disk; when it raises, the directory has no commit marker. Needs a process group, if of one rank.
    """
    directory = Path(directory)
    if dist.get_rank() == 0:
        shutil.rmtree(directory, ignore_errors=True)  # what a killed attempt left
        directory.mkdir(parents=True)
    dist.barrier(group=group)
    writer = _HashingDiskWriter(directory)
    dcp.save(tensors, storage_writer=writer, process_group=group)
    described = _gather(writer.fs.described, group)
    if dist.get_rank() == 0:
        listed = {name: file for rank_files in described for name, file in rank_files.items()}
        listed[".metadata"] = _describe(directory / ".metadata")
        files.write_json(
            directory / COMMIT, {"format": FORMAT, **facts, "files": {name: listed[name] for name in sorted(listed)}}
        )
        files.sync_directory(directory.parent)
    dist.barrier(group=group)


def load(directory, tensors, group=None):
    """Fill `tensors` (as given to `save`, of any world size) from a checkpoint, in place; all ranks call it together."""
    reader = _GuardedReader(directory)
    reader.read_metadata()  # before DCP does, which would turn a refusal into a failure of all ranks
    dcp.load(tensors, storage_reader=reader, process_group=group)


def load_tensors(directory, keys):
    """Read some tensors by their full keys (`model.head.weight`) as {key: CPU tensor}, without a process group.

    Raises UserError when the checkpoint lacks a key.
    """
    reader = _GuardedReader(directory)
    known = reader.read_metadata().state_dict_metadata
    for key in keys:
        if key not in known:
            raise UserError(f"{directory} must hold {key}, and does not")
    tensors = {key: torch.empty(known[key].size, dtype=known[key].properties.dtype) for key in keys}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as wanted
        dcp.load(tensors, storage_reader=_GuardedReader(directory), no_dist=True)
    return tensors


def keys_of(directory):
    """The full keys of a checkpoint's tensors, sorted."""
    return sorted(_GuardedReader(directory).read_metadata().state_dict_metadata)


def read_commit(directory):
    """What commit.json says. Raises UserError when the checkpoint is not complete: no marker, or a file's size is wrong."""
    directory = Path(directory)
    if not (directory / COMMIT).exists():
        raise UserError(f"{directory} is not a complete checkpoint: it has no {COMMIT}")
    commit = files.read_json(directory / COMMIT)
    if commit.get("format") != FORMAT:
        raise UserError(f"{directory / COMMIT} must have format {FORMAT}, found {commit.get('format')}")
    for name, file in commit["files"].items():
        found = (directory / name).stat().st_size if (directory / name).exists() else None
        if found != file["bytes"]:
            raise UserError(f"{directory / name} must have {file['bytes']} bytes by {COMMIT}, found {found}")
    return commit


def verify(directory, commit, part=0, parts=1):
    """Compare the sha256 of every file (of each `parts`-th from `part`). Raises UserError naming the first that differs."""
    for name in sorted(commit["files"])[part::parts]:
        if files.sha256_file(Path(directory) / name) != commit["files"][name]["sha256"]:
            raise UserError(f"{Path(directory) / name} changed since it was written: its sha256 differs from {COMMIT}")


def complete_steps(run_directory, at_most=None):
    """Steps that have a complete checkpoint, ascending. A torn one is named in a warning and left out."""
    steps = []
    for directory in sorted((Path(run_directory) / "checkpoints").glob("[0-9]*")):
        step = int(directory.name)
        if at_most is not None and step > at_most:
            continue
        try:
            read_commit(directory)
        except UserError as error:
            if (directory / COMMIT).exists() or any(directory.iterdir()):
                logger.warning("skipping a torn checkpoint: %s", error)
            continue
        steps.append(step)
    return steps


def remove(directory):
    """Delete a checkpoint, its commit marker first, so that a kill in between leaves a torn one and not a lying one."""
    with contextlib.suppress(FileNotFoundError):
        (Path(directory) / COMMIT).unlink()
    shutil.rmtree(directory, ignore_errors=True)


class _HashingFileSystem(FileSystem):
    """DCP's file system, hashing what it writes while it writes."""

    def __init__(self):
        super().__init__()
        self.described = {}

    @contextlib.contextmanager
    def create_stream(self, path, mode):
        with super().create_stream(path, mode) as stream:
            if mode != "wb" or Path(path).name.startswith(".metadata"):
                yield stream
                return
            hashing = _HashingStream(stream)
            yield hashing
            self.described[Path(path).name] = {"bytes": hashing.writer.bytes, "sha256": hashing.writer.hash.hexdigest()}


class _HashingStream(io.RawIOBase):
    """What torch.save and DCP ask of a file, in front of a `HashingWriter`."""

    def __init__(self, file):
        self.writer = files.HashingWriter(file)

    def write(self, data):
        return self.writer.write(data)

    def tell(self):
        return self.writer.bytes

    def fileno(self):
        return self.writer.fileno()

    def writable(self):
        return True


class _HashingDiskWriter(dcp.FileSystemWriter):
    def __init__(self, directory):
        super().__init__(directory, single_file_per_rank=True, sync_files=True)
        self.fs = _HashingFileSystem()

    def storage_meta(self):
        """None: DCP would write this machine's path and a random id, and equal training must give equal bytes."""
        return None


class _GuardedUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a checkpoint's .metadata may not name {module}.{name}")


class _GuardedReader(dcp.FileSystemReader):
    """DCP's reader, with a .metadata that can name DCP's own classes only. Tensors are read with weights_only=True."""

    def read_metadata(self, *_, **__):
        path = Path(self.path) / ".metadata"
        try:
            with open(path, "rb") as file:
                metadata = _GuardedUnpickler(file).load()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise UserError(f"{path} is not the .metadata of a checkpoint: {error}") from None
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = dcp.metadata.StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _describe(path):
    return {"bytes": os.path.getsize(path), "sha256": files.sha256_file(path)}


def _gather(value, group):
    gathered = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group=group)
    return gathered
