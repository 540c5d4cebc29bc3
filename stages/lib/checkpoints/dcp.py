"""A checkpoint's tensors, written and read by torch.distributed.checkpoint (DCP).

The keys are `model.<FMS key>`, `optimizer.<FMS key>.<moment>`, `rng` and `loss_guard.<name>`. The sha256 of every file
is computed while it is written. commit.py has the commit format.
"""

from __future__ import annotations

import contextlib
import io
import math
import mmap
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.utils import _create_file_view
from torch.futures import Future
from torch.utils._pytree import tree_leaves

from stages.lib import files, manifest
from stages.lib.checkpoints import dcp_metadata
from stages.lib.checkpoints.commit import directory_beside, publish, read_marker, write_commit
from stages.lib.distributed import collectives
from stages.lib.errors import UserError

if TYPE_CHECKING:
    from stages.lib.run_directory.lease import Lease

BYTES_OF_FILE, MAX_FILES = 2**31, 8
"""Least bytes per file if a rank writes several, and the largest number of these."""


def read(
    directory: Path, key: str, tensor: TensorStorageMetadata, places: Mapping[MetadataIndex, _StorageInfo]
) -> torch.Tensor:
    """Return a tensor of a checkpoint. `tensor`, `places`: of its metadata.

    One that lies in a single part is mapped; parts are joined in memory of their own. A place that parts which overlap
    leave empty is NaN, not what was in memory before. Raises an exception of any class for a record that is not valid.
    """
    dtype = tensor.properties.dtype
    parts = []
    for chunk in sorted(tensor.chunks, key=lambda chunk: chunk.offsets):
        part = map_record(directory, places[MetadataIndex(key, chunk.offsets)])
        if part.dtype != dtype or part.shape != chunk.sizes:
            raise ValueError(
                f"a part of {key} must be of {dtype} and {list(chunk.sizes)}, found {part.dtype} and {list(part.shape)}"
            )
        parts.append((chunk, part))
    if _are_rows([chunk for chunk, _ in parts], tensor.size):
        return torch.cat([part for _, part in parts]) if len(parts) > 1 else parts[0][1]
    whole = torch.full(tensor.size, math.nan if dtype.is_floating_point else 0, dtype=dtype)
    for chunk, part in parts:
        whole[tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))] = part
    return whole


def _are_rows(chunks: Iterable[ChunkStorageMetadata], size: torch.Size) -> bool:
    """Return True if the chunks are consecutive rows of a whole tensor, or all of it."""
    end = 0
    for chunk in chunks:
        if chunk.sizes[1:] != size[1:] or any(chunk.offsets[1:]) or chunk.offsets[:1] not in ((), (end,)):
            return False
        end += chunk.sizes[0] if size else 1
    return end == (size[0] if size else 1)


def map_record(directory: Path, place: _StorageInfo) -> torch.Tensor:
    """Return the tensor of a record in a file of the checkpoint; raise an exception of any class if it is not valid."""
    with open(directory / place.relative_path, "rb") as file:
        record: Any = _create_file_view(file, place.offset, place.length)
        described = torch.load(record, map_location="meta", weights_only=True)  # reads no data
        if type(described) is not torch.Tensor or described.layout != torch.strided:
            raise ValueError(f"a record of {place.relative_path} must be a dense tensor")
        storage = described.untyped_storage()
        if not storage.nbytes():
            return torch.empty(described.shape, dtype=described.dtype)
        offset = storage._checkpoint_offset  # where torch.load(map_location="meta") keeps it
        assert offset is not None
        start = place.offset + offset
        if start + storage.nbytes() > place.offset + place.length:
            raise ValueError(f"a record of {place.relative_path} ends within its data")
        before = start % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(
            file.fileno(), before + storage.nbytes(), access=mmap.ACCESS_COPY, offset=start - before
        )  # a copy of each page that is written to: the file stays as it is
    pages.madvise(mmap.MADV_WILLNEED)
    count = storage.nbytes() // described.itemsize
    flat = torch.frombuffer(pages, dtype=described.dtype, count=count, offset=before)
    return flat.as_strided(described.shape, described.stride(), described.storage_offset())


def save(
    directory: Path | str,
    tensors: dict[str, Any],
    facts: Mapping[str, Any],
    lease: Lease | None = None,
    group: dist.ProcessGroup | None = None,
    compute: Callable[[str], torch.Tensor] | None = None,
) -> None:
    """Write a checkpoint; all ranks call it together.

    `tensors`: nested dictionary of tensors and DTensors; with `compute` they may be on the meta device, and the tensor
    of a full key (`model.head.weight`) is computed when it is written, so that one is in memory at a time. `facts`:
    the keys of commit.json beside the files. `lease` is checked before the first change, and before the checkpoint
    takes its place, on the rank that has one. `group`: a gloo group for the ranks' communication while the training
    uses the default group. When it returns, the checkpoint is on the disk; if it raises (UserError on all ranks for a
    full or failing disk), `directory` is as it was. Needs a process group, if only of one rank.
    """
    directory = Path(directory)
    making, is_first = collectives.all_gather_object(directory_beside(directory), group)[0], dist.get_rank() == 0
    failing = f"{directory} could not be written"
    try:
        with collectives.raise_on_all_ranks(group), _in_one_sentence(failing):
            if is_first:
                if lease:
                    lease.check()
                making.mkdir(parents=True)
        writer = _HashingDiskWriter(making, 1 if compute else num_files(tensors))
        with collectives.raise_on_all_ranks(group), _in_one_sentence(failing):
            planner = None if compute is None else _ComputingPlanner(compute)
            dcp.save(tensors, storage_writer=writer, planner=planner, process_group=group)
            if writer.fs.failed is not None:
                raise writer.fs.failed
        gathered = collectives.all_gather_object(writer.fs.described, group)
        with collectives.raise_on_all_ranks(group), _in_one_sentence(failing):
            if is_first:
                described = {name: file for rank_files in gathered for name, file in rank_files.items()}
                described[".metadata"] = manifest.describe(making / ".metadata")
                write_commit(making, facts, described)
                if lease:
                    lease.check()
                publish(making, directory)
    except UserError:  # of all ranks: none writes any more
        if is_first:
            shutil.rmtree(making, ignore_errors=True)
        raise


def num_files(tensors: dict[str, Any]) -> int:
    """The number of files to which this rank writes its share of nested tensors.

    A thread writes and hashes each: sha256 passes a gigabyte per second. It depends on the tensors alone, as all bytes
    of a checkpoint do.
    """
    shares = [collectives.local_tensor(tensor) for tensor in tree_leaves(tensors)]
    return max(1, min(MAX_FILES, sum(share.nbytes for share in shares) // BYTES_OF_FILE))


def load(directory: Path | str, tensors: dict[str, Any]) -> None:
    """Fill `tensors` (as given to `save`, on any world size) from a checkpoint, in place; all ranks call it.

    Raises UserError on all ranks if the checkpoint is not valid, or lacks a tensor.
    """
    reader = _Reader(directory)
    with collectives.raise_on_all_ranks():
        reader.read_metadata()  # before DCP does, which would continue without it and fail later
    with collectives.raise_on_all_ranks(), _in_one_sentence(f"{directory} could not be read", Exception):
        dcp.load(tensors, storage_reader=reader, planner=_TensorPlanner())


def load_tensors(directory: Path | str, keys: Sequence[str]) -> dict[str, torch.Tensor]:
    """Map some tensors by their full keys (`model.head.weight`) as {key: CPU tensor}, without a process group.

    Raises UserError if the checkpoint is not valid, or lacks a key.
    """
    return _load_tensors(_Reader(directory), keys)


def _load_tensors(reader: _Reader, keys: Sequence[str]) -> dict[str, torch.Tensor]:
    metadata = reader.read_metadata()
    known: dict[str, Any] = metadata.state_dict_metadata
    for key in keys:
        if key not in known:
            raise UserError(f"{reader.path} lacks {key}")
    with _in_one_sentence(f"{reader.path} could not be read", Exception):
        return {key: read(Path(reader.path), key, known[key], metadata.storage_data) for key in keys}


def model_reader(directory: Path | str) -> Callable[[Sequence[str]], dict[str, torch.Tensor]]:
    """A function that reads a checkpoint's model: FMS keys -> {FMS key: CPU tensor}."""
    reader = _Reader(directory)

    def read(keys: Sequence[str]) -> dict[str, torch.Tensor]:
        tensors = _load_tensors(reader, [f"model.{key}" for key in keys])
        return {key: tensors[f"model.{key}"] for key in keys}

    return read


def open_foreign(
    directory: Path | str,
) -> tuple[dict[str, tuple[list[int], torch.dtype]], Callable[[str], torch.Tensor]]:
    """({key: (shape, dtype)}, function that reads a tensor by its key) of a checkpoint of another program.

    What is not a tensor is left out. Raises UserError if the checkpoint is not valid.
    """
    reader = _ForeignReader(directory)
    described: dict[str, Any] = reader.read_metadata().state_dict_metadata
    shapes = {key: (list(tensor.size), tensor.properties.dtype) for key, tensor in described.items()}
    return shapes, lambda key: _load_tensors(reader, [key])[key]


def keys_of(directory: Path | str) -> list[str]:
    """The full keys of a checkpoint's tensors, sorted."""
    return sorted(_Reader(directory).read_metadata().state_dict_metadata)


@contextlib.contextmanager
def _in_one_sentence(failing: str, mistake: type[Exception] = OSError) -> Iterator[None]:
    """Raise a UserError of one line for an error of the class `mistake`.

    DCP raises many lines, in a class that is not an Exception. A disk that fails is a mistake in a save; in a load it
    is any error: the file is not what commit.json and .metadata describe.
    """
    try:
        yield
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        if isinstance(cause, UserError):
            raise cause from None
        kind = UserError if isinstance(cause, mistake) else RuntimeError
        raise kind(f"{failing}: {next(iter(str(cause).splitlines()), repr(cause))}") from error
    except UserError:
        raise
    except mistake as error:
        raise UserError(f"{failing}: {next(iter(str(error).splitlines()), repr(error))}") from None


class _HashingFileSystem(FileSystem):
    """DCP's file system, which hashes the files while it writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.described: dict[str, dict[str, Any]] = {}
        """{name of a file: {"bytes", "sha256"}}."""
        self.failed: Exception | None = None
        """The error of a file, which DCP would lose in a thread."""

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            if mode != "wb" or Path(path).name.startswith(".metadata"):
                yield stream
                return
            hashing = _HashingStream(cast(IO[bytes], stream))
            try:
                yield hashing
            except Exception as error:
                self.failed = hashing.failed or error  # torch's zip writer hides why a write failed
                return
            self.described[Path(path).name] = {"bytes": hashing.bytes, "sha256": hashing.hash.hexdigest()}


class _HashingStream(files.HashingWriter):
    """A `HashingWriter` that keeps its error."""

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failed = error
            raise


class _HashingDiskWriter(dcp.FileSystemWriter):
    fs: _HashingFileSystem

    def __init__(self, directory: Path, num_files: int) -> None:
        super().__init__(directory, single_file_per_rank=True, sync_files=True, thread_count=num_files)
        self.fs = _HashingFileSystem()

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write .metadata: in the order of the files, which end in any."""
        super().finish(metadata, [sorted(of_rank, key=_place) for of_rank in results])

    def storage_meta(self) -> None:
        """None: DCP would write the path and a random id, and equal trainings must write equal bytes."""
        return None


def _place(result: WriteResult) -> tuple[int, str, int]:
    name = result.storage_data.relative_path
    return len(name), name, result.storage_data.offset


class _ComputingPlanner(dcp.DefaultSavePlanner):
    """DCP's planner of a save, which computes each tensor when it is written."""

    def __init__(self, compute: Callable[[str], torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        return self.compute(index.fqn)


class _Reader(dcp.FileSystemReader):
    """DCP's reader, for a checkpoint that may be anybody's: it reads .metadata once, and tensors only."""

    _metadata: Metadata | None = None

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        if self._metadata is None:
            directory = Path(self.path)
            self._metadata = dcp_metadata.read(directory, read_marker(directory)["files"])
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy tensors from the files' pages; DCP's own copies each record into new memory first."""
        if any(item.type == LoadItemType.BYTE_IO for item in plan.items):
            return super().read_data(plan, planner)
        for item in plan.items:
            record = map_record(Path(self.path), self.storage_data[item.storage_index])
            part = narrow_tensor_by_index(record, item.storage_offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            if target.size() != part.size():
                raise ValueError(f"{item.dest_index.fqn} must be {list(target.size())}, found {list(part.size())}")
            target.copy_(part)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class _ForeignReader(_Reader):
    """The same for a checkpoint without commit.json."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        if self._metadata is None:
            self._metadata = dcp_metadata.read_foreign(Path(self.path))
        return self._metadata


class _TensorPlanner(dcp.DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """DCP's own runs the code of a pickle."""
        raise UserError(f"{read_item.dest_index.fqn} must be a tensor")
