"""Peers: the training step of other libraries on the same card, where they are installed.

transformers' step is here. Others, such as torchtitan, need a program of their own, whose command `--peer` gives: it
takes steps on this card, and the last line that it prints is a JSON object with `tokens_per_second`, and if it can
`peak_memory_gb` (1e9 bytes) and further keys, which are kept.
"""

import functools
import importlib.util
import json
import os
import shlex

from benchmarks.gpu.session import Skipped, Step, StepError
from stages.lib import files
from stages.lib.errors import UserError

SHAPES = ("llama3-1b", "llama3-8b")


def named(given):
    """Return {name: command as a list of words} of the texts NAME=COMMAND. Raises UserError."""
    peers = {}
    for text in given:
        name, sign, command = (part.strip() for part in text.partition("="))
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--peer must be NAME=COMMAND, got {text!r}: {error}") from None
        if not (name and sign and words):
            raise UserError(f"--peer must be NAME=COMMAND, got {text!r}")
        if name in peers:
            raise UserError(f"--peer must give each name once, and {name} is given twice")
        peers[name] = words
    return peers


def steps(session):
    """Yield a step per shape of transformers, and per command."""
    for shape in ("tiny",) if session.dry else SHAPES:
        yield Step(name=f"transformers, {shape}", take=functools.partial(_transformers, session, shape), minutes=3)
    for name in session.peers:
        yield Step(name=name, take=functools.partial(_command, session, name), minutes=5)


def _command(session, name):
    session.execute(name, session.peers[name], os.getcwd())
    lines = session.log_of(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    try:
        found = json.loads(lines[-1])
        line = f"{found['tokens_per_second']:,.0f} tokens/s"
    except (IndexError, KeyError, TypeError, ValueError):
        last = lines[-1][:200] if lines else ""
        raise StepError(f"the last line must be a JSON object with tokens_per_second, got {last!r}") from None
    if "peak_memory_gb" in found:
        line += f", peak {found['peak_memory_gb'] * 1e9 / (1 << 30):.1f} GiB"
    return line, found


def _transformers(session, shape):
    if importlib.util.find_spec("transformers") is None:
        raise Skipped("transformers is not installed")
    output = session.made / f"peers/{shape}.json"
    output.parent.mkdir(exist_ok=True)
    words = ["--seq-len", 64] if session.dry else ["--seq-len", 4096, "--micro-batch-size", 2]
    session.command(f"transformers, {shape}", "benchmarks.gpu.transformers_peer", shape, output, *words)
    found = files.read_json_object(output)
    peak = found["peak_memory_mb"] * 1e6 / (1 << 30)
    return f"{found['tokens_per_second']:,.0f} tokens/s, peak {peak:.1f} GiB; {found['settings']}", found
