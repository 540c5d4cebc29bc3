"""The log of a step's allocations under FakeTensorMode, from which its peak memory is computed by part."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
GATHERED, REDUCED, ACTIVATIONS, LOGITS = "gathered_weights", "gradient_buffers", "activations", "logits"
OTHER = "other"
PARTS = (WEIGHTS, GRADIENTS, OPTIMIZER, GATHERED, REDUCED, ACTIVATIONS, LOGITS, OTHER)
"""Parts of a rank's memory. gathered_weights: whole parameters and the buffers of all-gathers. gradient_buffers: whole
gradients before they are reduced, and the buffers of reduce-scatters. logits: a chunk of them, their gradient, and the
gradient of the head until it is accumulated. other: of clipping and the optimizer."""

BLOCK_INPUTS = "block_inputs"
"""The input of each block: a part of the activations that mode `offload` keeps in CPU memory."""

Segments = dict[str, Counter[str]]
"""{name of a segment of the step: bytes by part at the moment of the segment in which most is allocated}"""


class AllocationLog(TorchDispatchMode):
    """Records which storages are allocated, resized and freed, and to which part of memory each belongs.

    A storage belongs to the part that is current when it is allocated (`part`), unless its use shows another one: the
    operators of FSDP's collectives do, or `mark`.
    """

    def __init__(self, is_gloo: bool) -> None:
        """`is_gloo`: count the copy that gloo makes for the time of a collective, too; NCCL makes none."""
        super().__init__()
        self.is_gloo = is_gloo
        self.part, self.segment = OTHER, "start"
        self.parts: list[str] = []  # of each storage, by its number
        self.changes: list[tuple[int, int, str]] = []  # (number of a storage, change in bytes, segment)
        self._numbers: dict[int, int] = {}  # of the storages that are allocated, by id
        self._sizes: dict[int, int] = {}  # of the same, by number

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and record the storages of its results."""
        result = operator(*args, **(kwargs or {}))
        if operator.namespace == "prim":  # most calls: the device of a tensor
            return result
        for tensor in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._number(tensor)
        if operator is torch.ops.aten.logsumexp.default:
            self._transient(args[0], self.part)  # its kernel has the exponentials in memory
        if operator.namespace in ("c10d", "fsdp"):
            self._mark_collective(str(operator), args, kwargs or {})
        return result

    def mark(self, tensors: Any, part: str) -> None:
        """Let the storages of tensors belong to a part, from their allocation on."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                self.parts[self._number(tensor)] = part

    def forget_past(self) -> None:
        """Drop the changes so far: what is allocated now is what the log begins with."""
        self.changes = [(number, size, "start") for number, size in self._sizes.items()]

    @contextlib.contextmanager
    def resizes(self) -> Iterator[None]:
        """Record as well what FSDP allocates and frees by resizing a storage, which no operator shows."""
        resize = torch.UntypedStorage.resize_

        def recorded(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if (number := self._numbers.get(id(storage))) is not None:
                self._change(number, size - self._sizes[number])
            return result

        torch.UntypedStorage.resize_ = recorded  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def segments(self, left_out: frozenset[str] = frozenset()) -> Segments:
        """Return the peak of each segment by part, of all parts but those `left_out`."""
        live: Counter[str] = Counter()
        total = 0
        peaks: Segments = {}
        peak_totals: dict[str, int] = {}
        for number, change, segment in self.changes:
            part = self.parts[number]
            if part in left_out:
                continue
            live[part] += change
            total += change
            if total > peak_totals.get(segment, -1):
                peak_totals[segment], peaks[segment] = total, live.copy()
        return peaks

    def _number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage, which is recorded if it is new."""
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        known = self._numbers.get(id(storage))
        if known is not None:
            return known
        number = len(self.parts)
        self.parts.append(self.part)
        self._numbers[id(storage)], self._sizes[number] = number, 0
        weakref.finalize(storage, self._freed, id(storage))
        self._change(number, storage.nbytes())
        return number

    def _freed(self, key: int) -> None:
        number = self._numbers.pop(key)
        self._change(number, -self._sizes[number])
        del self._sizes[number]

    def _change(self, number: int, change: int) -> None:
        self._sizes[number] += change
        self.changes.append((number, change, self.segment))

    def _mark_collective(self, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        if name.startswith("c10d._allgather_base_"):
            self.mark(args[0], GATHERED)
            self._copy_for_gloo(args[0], GATHERED)
        elif name.startswith("c10d._reduce_scatter_base_"):
            self._copy_for_gloo(args[1], REDUCED)
        elif name.startswith("fsdp.split_with_sizes_copy"):
            self.mark(kwargs["out"], GATHERED)
        elif name.startswith("fsdp.chunk_cat"):
            self.mark([args[0], kwargs["out"]], REDUCED)

    def _copy_for_gloo(self, tensor: torch.Tensor, part: str) -> None:
        if self.is_gloo:
            self._transient(tensor, part)

    def _transient(self, like: torch.Tensor, part: str) -> None:
        """Record memory as large as a tensor that an operator allocates and frees, which no result shows."""
        self.parts.append(part)
        number = len(self.parts) - 1
        self.changes += [(number, like.nbytes, self.segment), (number, -like.nbytes, self.segment)]
