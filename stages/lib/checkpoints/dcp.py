"""Checkpoints: torch.distributed.checkpoint (DCP) with sha256 of every file and a commit marker that is written last.

    00000300/__0_0.distcp ...   tensors, a file a rank: `model.<FMS key>`, `optimizer.<FMS key>.<moment>`, `rng`
    00000300/.metadata          which tensor lies where
    00000300/commit.json        format, step, samples, recipe, corpus, tokenizer, files with bytes and sha256

A directory without commit.json, or with a file of another size or hash, is torn: it is skipped, never read.
"""

import contextlib
import io
import pickle
import shutil
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from stages.lib import files, manifest
from stages.lib.distributed import collectives
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


def save(directory, tensors, facts, lease=None, group=None):
    """Write a checkpoint; all ranks call it together.

    `tensors`: nested dictionary of tensors and DTensors. `facts`: what commit.json says beside the files. `lease` is
    checked before the marker is written, on the rank that has one. `group`: the gloo group over which the ranks speak,
    where the training uses the default one meanwhile. When it returns, the checkpoint is on the disk; when it raises
    (UserError on all ranks for a full or failing disk), the directory has no commit marker. Needs a process group, if
    of one rank.
    """
    directory = Path(directory)
    failing = f"{directory} could not be written"
    with collectives.raise_on_all_ranks(group), _in_one_sentence(failing):
        if dist.get_rank() == 0:
            remove(directory)  # what a killed attempt left
            directory.mkdir(parents=True, exist_ok=True)
    writer = _HashingDiskWriter(directory)
    with collectives.raise_on_all_ranks(group), _in_one_sentence(failing):
        dcp.save(tensors, storage_writer=writer, process_group=group)
    described = collectives.all_gather_object(writer.fs.described, group)
    with collectives.raise_on_all_ranks(group), _in_one_sentence(failing):
        if dist.get_rank() == 0:
            listed = {name: file for rank_files in described for name, file in rank_files.items()}
            listed[".metadata"] = manifest.describe(directory / ".metadata")
            if lease:
                lease.check()
            commit = {"format": FORMAT, **facts, "files": {name: listed[name] for name in sorted(listed)}}
            files.write_json(directory / COMMIT, commit | {"sha256": manifest.digest_of(commit)})
            files.sync_directory(directory.parent)


def load(directory, tensors):
    """Fill `tensors` (as given to `save`, on any world size) from a checkpoint, in place; all ranks call it."""
    reader = _GuardedReader(directory)
    with collectives.raise_on_all_ranks():
        reader.read_metadata()  # before DCP does, which would go on without it and fail elsewhere
    with collectives.raise_on_all_ranks(), _in_one_sentence(f"{directory} could not be read"):
        dcp.load(tensors, storage_reader=reader)


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
        with _in_one_sentence(f"{directory} could not be read"):
            dcp.load(tensors, storage_reader=_GuardedReader(directory), no_dist=True)
    return tensors


def keys_of(directory):
    """The full keys of a checkpoint's tensors, sorted."""
    return sorted(_GuardedReader(directory).read_metadata().state_dict_metadata)


def read_commit(directory):
    """What commit.json says. Raises UserError where the checkpoint is torn: no marker, or a file of a wrong size."""
    directory = Path(directory)
    if not (directory / COMMIT).exists():
        raise UserError(f"{directory} is not a complete checkpoint: it has no {COMMIT}")
    commit = files.read_json(directory / COMMIT)
    found = commit.get("format") if isinstance(commit, dict) else None
    if found != FORMAT:
        raise UserError(f"{directory / COMMIT} must have format {FORMAT}, found {found}")
    if commit.pop("sha256", None) not in (None, manifest.digest_of(commit)):  # the first checkpoints had none
        raise UserError(f"{directory / COMMIT} changed since it was written: its sha256 differs from its content's")
    for name, file in commit["files"].items():
        found = (directory / name).stat().st_size if (directory / name).exists() else None
        if found != file["bytes"]:
            raise UserError(f"{directory / name} must have {file['bytes']} bytes by {COMMIT}, found {found}")
    return commit


def verify(directory, commit, part=0, parts=1):
    """Compare the sha256 of each file (every `parts`-th from `part`). Raises UserError for the first that differs."""
    for name in sorted(commit["files"])[part::parts]:
        path = Path(directory) / name
        with _in_one_sentence(f"{path} could not be read"):
            found = files.sha256_file(path)
        if found != commit["files"][name]["sha256"]:
            raise UserError(f"{path} changed since it was written: its sha256 differs from {COMMIT}")


def complete_steps(run_directory, at_most=None):
    """Steps that have a complete checkpoint, ascending. A torn one is named in a warning and left out."""
    steps = []
    for directory in _directories(run_directory, at_most):
        try:
            read_commit(directory)
        except UserError as error:
            logger.warning("skipping a torn checkpoint: %s", error)
            continue
        steps.append(int(directory.name))
    return steps


def remove_uncommitted(run_directory, at_most):
    """Delete what kills left up to a step: directories without a marker. A damaged one stays for people to see."""
    for directory in _directories(run_directory, at_most):
        if not (directory / COMMIT).exists():
            remove(directory)


def _directories(run_directory, at_most):
    found = sorted((Path(run_directory) / "checkpoints").glob("[0-9]*"))
    numbered = [directory for directory in found if directory.name.isdecimal()]  # and no 00000300.copy
    return [directory for directory in numbered if at_most is None or int(directory.name) <= at_most]


def remove(directory):
    """Delete a checkpoint, its commit marker first, so that a kill in between leaves a torn one and not a lying one."""
    with contextlib.suppress(FileNotFoundError):
        (Path(directory) / COMMIT).unlink()
    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _in_one_sentence(what):
    """Raise UserError for a disk that fails. DCP gives a failure of many lines instead, which is no Exception even."""
    try:
        yield
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        if isinstance(cause, UserError):
            raise cause from None
        kind = UserError if isinstance(cause, OSError) else RuntimeError
        raise kind(f"{what}: {cause}") from error
    except OSError as error:
        raise UserError(f"{what}: {error}") from None


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
            try:
                yield hashing
            except RuntimeError as error:  # torch's zip writer does not hand on why a write failed
                raise (hashing.failed or error) from error
            self.described[Path(path).name] = {"bytes": hashing.writer.bytes, "sha256": hashing.writer.hash.hexdigest()}


class _HashingStream(io.RawIOBase):
    """What torch.save and DCP ask of a file, in front of a `HashingWriter`."""

    def __init__(self, file):
        self.writer = files.HashingWriter(file)
        self.failed = None

    def write(self, data):
        try:
            return self.writer.write(data)
        except OSError as error:
            self.failed = error
            raise

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


def _memory_format(enumeration, name):
    """The getattr by which Python before 3.11.4 pickles a member of an enumeration, for the only one that is needed."""
    if enumeration is not _MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"a checkpoint's .metadata may not take {name!r} from {enumeration!r}")
    return _MEM_FORMAT_ENCODING[name]


class _GuardedUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("builtins", "getattr"):
            return _memory_format
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
