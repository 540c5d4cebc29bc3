"""DCP's .metadata, which states where each tensor lies. It is a pickle, and is read without running any code of it.

Every name in the pickle stands for a number type, a tuple or an inert `_Object`. DCP's objects are then built from
checked strings and numbers, so no checkpoint can choose what DCP does. A foreign checkpoint, which another program
wrote, may have entries that are not tensors: they are left out, so DCP never unpickles them.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from stages.lib.errors import UserError

NAME = ".metadata"
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8")
LARGEST = 2**63 - 1
_MEMO_OPCODES = ("PUT", "BINPUT", "LONG_BINPUT")  # MEMOIZE counts by itself

T = TypeVar("T")


class _Object:
    """An object of the pickle: a state and no behaviour. The subclasses have the names of DCP's classes."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Ignored(_Object):
    """An object that is made by a call, and whose value is not used: a layout, a memory format or a path."""

    def __new__(cls, *_: Any) -> "_Ignored":
        return super().__new__(cls)


_CLASSES = (ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata, _StorageInfo)
_FOREIGN_CLASSES = (BytesStorageMetadata, StorageMeta)
_OBJECTS = {made.__name__: type(made.__name__, (_Object,), {}) for made in (*_CLASSES, *_FOREIGN_CLASSES)}
_SHARDED_TENSOR = "torch.distributed._shard.sharded_tensor.metadata"
_NAMES: dict[str, Any] = {
    **{f"{made.__module__}.{made.__name__}": _OBJECTS[made.__name__] for made in _CLASSES},
    **{f"torch.{name}": getattr(torch, name) for name in DTYPES},
    "torch.Size": tuple,
    "torch.serialization._get_layout": _Ignored,
    f"{Metadata.__module__}._MEM_FORMAT_ENCODING": _Ignored,
    "builtins.getattr": _Ignored,  # of _MEM_FORMAT_ENCODING, as Python before 3.11.4 pickles it
}
_FOREIGN_NAMES: dict[str, Any] = {
    **_NAMES,
    **{f"{made.__module__}.{made.__name__}": _OBJECTS[made.__name__] for made in _FOREIGN_CLASSES},
    f"{_SHARDED_TENSOR}.TensorProperties": _OBJECTS["TensorProperties"],  # of torch before 2.3
    f"{_SHARDED_TENSOR}.MEM_FORMAT_ENCODING": _Ignored,
    "pathlib.PosixPath": _Ignored,  # the path of the save, in StorageMeta
    "pathlib._local.PosixPath": _Ignored,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, names: Mapping[str, Any]) -> None:
        super().__init__(io.BytesIO(content))
        self.names = names

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.names[f"{module}.{name}"]
        except KeyError:
            raise ValueError(f"it may not name {f'{module}.{name}'!r:.100}") from None


def _load(path: Path, names: Mapping[str, Any]) -> Any:
    """Return the object of a pickle.

    Its memory follows its size: the unpickler allocates what an opcode announces before it reads it, so a memo of 2^31
    entries, or bytes that do not follow, are refused before. Raises ValueError for these, and for opcodes of no pickle.
    """
    content = path.read_bytes()
    for opcode, argument, _ in pickletools.genops(content):  # it reads no more bytes than there are
        if opcode.name in _MEMO_OPCODES and (argument or 0) >= len(content):
            raise ValueError(f"it numbers an object {argument:,}, and has {len(content):,} bytes")
    return _Unpickler(content, names).load()


def read(directory: Path, described: Mapping[str, Mapping[str, Any]]) -> Metadata:
    """Read the .metadata of a checkpoint. `described`: the files of its commit.json, {name: {"bytes", "sha256"}}.

    Raises UserError if it is not valid, or places a tensor outside of these files.
    """
    path = directory / NAME
    try:
        if NAME not in described:
            raise ValueError("commit.json does not list it")
        pickled = _load(path, _NAMES)
        tensors, places = _attributes(pickled, Metadata, "state_dict_metadata", "storage_data")
        sizes = {name: file["bytes"] for name, file in described.items()}
        return _metadata(_exact(dict, tensors), _exact(dict, places), sizes, "that commit.json lists")
    except Exception as error:  # a pickle that is not valid may raise any error
        raise _refusal(path, error) from None


def read_foreign(directory: Path) -> Metadata:
    """Read the .metadata of a checkpoint of another program, which has no commit.json: the tensors alone.

    Raises UserError if it is not valid, or places a tensor outside of the files that the directory has.
    """
    path = directory / NAME
    try:
        pickled = _load(path, _FOREIGN_NAMES)
        tensors, places = _attributes(pickled, Metadata, "state_dict_metadata", "storage_data")
        tensors = _exact(dict, tensors)
        tensors = {key: one for key, one in tensors.items() if type(one) is not _OBJECTS["BytesStorageMetadata"]}
        places = {key: place for key, place in _exact(dict, places).items() if _key_of(key) in tensors}
        sizes = {file.name: file.stat().st_size for file in directory.iterdir() if file.is_file()}
        return _metadata(tensors, places, sizes, "of its directory")
    except Exception as error:  # as in `read`
        raise _refusal(path, error) from None


def _refusal(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is not the .metadata of a checkpoint: {' '.join(str(error).split()) or repr(error)}")


def _metadata(tensors: dict[Any, Any], places: dict[Any, Any], file_sizes: Mapping[str, int], of: str) -> Metadata:
    """Build DCP's metadata. `file_sizes`: the files in which tensors may lie, of which an error says `of`."""
    tensors = {_exact(str, key): _tensor(value) for key, value in tensors.items()}
    places = {_index(key): _place(value, file_sizes, of) for key, value in places.items()}
    for key, tensor in tensors.items():
        for chunk in tensor.chunks:
            place = places.get(MetadataIndex(key, chunk.offsets))
            if place is None or place.length < math.prod(chunk.sizes) * tensor.properties.dtype.itemsize:
                raise ValueError(f"a part of the tensor {key!r:.100} has no place in a file")
    return Metadata(tensors, storage_data=places, storage_meta=StorageMeta())


def _key_of(index: Any) -> str:
    (key,) = _attributes(index, MetadataIndex, "fqn")
    return _exact(str, key)


def _tensor(pickled: Any) -> TensorStorageMetadata:
    size, properties, chunks = _attributes(pickled, TensorStorageMetadata, "size", "properties", "chunks")
    size = _size(size)
    dtype, *_ = _exact(tuple, _exact(_OBJECTS["TensorProperties"], properties).state)
    parts = [_chunk(chunk, size) for chunk in _exact(list, chunks)]
    if sum(math.prod(part.sizes) for part in parts) != math.prod(size):
        raise ValueError(f"the parts of a tensor must have the elements of {list(size)}")
    return TensorStorageMetadata(TensorProperties(dtype=_exact(torch.dtype, dtype)), size, parts)


def _chunk(pickled: Any, whole: torch.Size) -> ChunkStorageMetadata:
    offsets, sizes = map(_size, _attributes(pickled, ChunkStorageMetadata, "offsets", "sizes"))
    for offset, size, end in zip(offsets, sizes, whole, strict=True):
        if offset + size > end:
            raise ValueError(f"a part of a tensor must lie within {list(whole)}")
    return ChunkStorageMetadata(offsets, sizes)


def _index(pickled: Any) -> MetadataIndex:
    key, offset = _attributes(pickled, MetadataIndex, "fqn", "offset")
    return MetadataIndex(_exact(str, key), _size(offset))


def _place(pickled: Any, file_sizes: Mapping[str, int], of: str) -> _StorageInfo:
    name, offset, length = _attributes(pickled, _StorageInfo, "relative_path", "offset", "length")
    if _exact(str, name) not in file_sizes or name == NAME:
        raise ValueError(f"a tensor must lie in a file {of}, found {name!r:.100}")
    if _number(offset) + _number(length) > file_sizes[name]:
        raise ValueError(f"a tensor must lie within the {file_sizes[name]} bytes of {name}")
    return _StorageInfo(name, offset, length)


def _size(value: Any) -> torch.Size:
    return torch.Size([_number(number) for number in _exact(tuple, value)])


def _number(value: Any) -> int:
    if not 0 <= _exact(int, value) <= LARGEST:
        raise ValueError("a number is out of range")
    return value


def _attributes(value: Any, made: type, *names: str) -> list[Any]:
    """Return the attributes `names` of a pickled object of one of DCP's classes."""
    state = _exact(dict, _exact(_OBJECTS[made.__name__], value).state)
    if not state.keys() >= set(names):
        raise ValueError(f"its {made.__name__} must have {', '.join(names)}")
    return [state[name] for name in names]


def _exact(expected: type[T], value: Any) -> T:
    if type(value) is not expected:
        raise ValueError(f"it must have a {expected.__name__}, found a {type(value).__name__}")
    return value
