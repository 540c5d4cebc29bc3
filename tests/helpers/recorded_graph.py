"""A stand-in of CUDA graphs on the CPU: it records the operators of a capture, and runs them again on its tensors.

As in a CUDA graph, a replay runs no Python of the model: what the host decided is decided once, and only the contents
of tensors change.
"""

import contextlib
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph(TorchDispatchMode):
    """Takes the place of torch.cuda.CUDAGraph."""

    made = 0
    """Number of graphs."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.num_replays = 0
        RecordedGraph.made += 1

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        """Run an operator, and record it. One that waits for the device cannot be captured."""
        assert operator is not torch.ops.aten._local_scalar_dense.default, "the host waits for the device"
        kwargs = kwargs or {}
        given = [(leaf, leaf.clone()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        result = operator(*args, **kwargs)
        aliases = [argument.alias_info for argument in operator._schema.arguments if argument.alias_info is not None]
        is_view = bool(aliases) and not any(alias.is_write for alias in aliases)
        if not is_view:
            self.calls.append((operator, args, kwargs, result, [] if not aliases else given))
        return result

    def undo(self):
        """Give back to all tensors what they held before: a capture computes nothing."""
        for *_, given in reversed(self.calls):
            for tensor, content in given:
                tensor.copy_(content)

    def replay(self):
        """Run all operators again; results go where they were."""
        self.num_replays += 1
        with torch.no_grad():
            for operator, args, kwargs, result, _ in self.calls:
                again = operator(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and old is not new:
                        old.copy_(new)


@contextlib.contextmanager
def _capture(graph, stream, capture_error_mode):
    with graph:
        yield
    graph.undo()


def install(monkeypatch):
    """Let torch.cuda's graphs and streams be stand-ins."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", _capture)
    monkeypatch.setattr(RecordedGraph, "made", 0)
