"""Peers: the training step of other libraries on the same card, where they are installed.

transformers' step is here. Others, such as torchtitan, need a program of their own, whose command `--peer` gives: it
takes steps on this card, and the last line that it prints is a JSON object with `tokens_per_second`, and if it can
`peak_memory_gb` (1e9 bytes) and further keys, which are kept.

    python -m benchmarks.gpu.peers llama3-1b OUTPUT --seq-len 4096 --micro-batch-size 2   # transformers alone

takes transformers' steps as its own Trainer does in bfloat16: weights, gradients and moments are bfloat16, where ours
has float32 weights; gradient checkpointing is on.
"""

import argparse
import functools
import json
import os
import shlex
import statistics
import time
from pathlib import Path

from benchmarks import train_gpu
from benchmarks.dummy import DummySamples
from benchmarks.gpu.session import GIB, Step, StepError, require
from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.training.step_metrics import peak_memory_mb

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
        line += f", peak {found['peak_memory_gb'] * 1e9 / GIB:.1f} GiB"
    return line, found


def _transformers(session, shape):
    require("transformers")
    output = session.made / f"peers/{shape}.json"
    output.parent.mkdir(exist_ok=True)
    words = ["--seq-len", 64] if session.dry else ["--seq-len", 4096, "--micro-batch-size", 2]
    session.command(f"transformers, {shape}", "benchmarks.gpu.peers", shape, output, *words)
    found = files.read_json_object(output)
    peak = found["peak_memory_mb"] * 1e6 / GIB
    return f"{found['tokens_per_second']:,.0f} tokens/s, peak {peak:.1f} GiB; {found['settings']}", found


SETTINGS = "bfloat16 weights and moments, SDPA, gradient checkpointing, fused AdamW"
WARM_UP, STEPS = 2, 6


def build(torch, shape, device):
    """Return (model, vocab_size) of `tiny`, or of the run in config/NAME.yaml."""
    from transformers import LlamaConfig, LlamaForCausalLM

    ours, vocab_size = train_gpu.model_of(shape)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    keys = {name: getattr(ours, name) for name in (*names, "tie_word_embeddings")}
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, use_cache=False, **keys)).to(torch.bfloat16)
    model.gradient_checkpointing_enable()
    return model.train(), vocab_size


def main():
    """Measure transformers, and write the JSON file."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, vocab_size = build(torch, arguments.shape, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    samples, size = DummySamples(vocab_size, arguments.seq_len, 0), arguments.micro_batch_size
    times = []
    for step in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        tokens, _ = samples.batch(range(step * size, (step + 1) * size))
        ids = torch.from_numpy(tokens).long().to(device)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    found = {
        "tokens_per_second": size * arguments.seq_len / statistics.median(times[WARM_UP:]),
        "peak_memory_mb": peak_memory_mb(device),
        "settings": SETTINGS,
        "seconds": times,
    }
    arguments.output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
