"""Peers: the training step of other libraries on the same card, where they are installed."""

import functools
import importlib.util

from benchmarks.gpu.session import Skipped, Step
from stages.lib import files

SHAPES = ("llama3-1b", "llama3-8b")


def steps(session):
    """Yield a step per shape."""
    for shape in ("tiny",) if session.dry else SHAPES:
        yield Step(name=f"transformers, {shape}", take=functools.partial(_take, session, shape), minutes=3)


def _take(session, shape):
    if importlib.util.find_spec("transformers") is None:
        raise Skipped("transformers is not installed")
    output = session.made / f"peers/{shape}.json"
    output.parent.mkdir(exist_ok=True)
    words = ["--seq-len", 64] if session.dry else ["--seq-len", 4096, "--micro-batch-size", 2]
    session.command(f"transformers, {shape}", "benchmarks.gpu.transformers_peer", shape, output, *words)
    found = files.read_json_object(output)
    peak = found["peak_memory_mb"] * 1e6 / (1 << 30)
    return f"{found['tokens_per_second']:,.0f} tokens/s, peak {peak:.1f} GiB; {found['settings']}", found
