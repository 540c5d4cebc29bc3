"""Peers: the training step of other libraries on the same card, where they are installed.

transformers' step is here. Others, such as torchtitan, need a program of their own, whose command `--peer` gives: it
takes steps on this card, and the last line that it prints is a JSON object with `tokens_per_second`, and if it can
`peak_memory_gb` (1e9 bytes) and further keys, which are kept.

    python -m benchmarks.gpu.peers llama3-1b OUTPUT --seq-len 4096 --micro-batch-size 2   # transformers alone

transformers is measured twice per shape: as its Trainer trains in bfloat16 (weights, gradients and moments in it,
gradient checkpointing, not compiled), and at the settings of one of our cells, the whole model compiled: the same
batch, checkpointing and weights, those in float32 under autocast.
"""

import argparse
import dataclasses
import functools
import json
import os
import shlex
import statistics
import sys
import time
from pathlib import Path

from benchmarks import harness, train_gpu
from benchmarks.dummy import DummySamples
from benchmarks.gpu import speed
from benchmarks.gpu.session import GIB, Step, StepError, require
from stages.lib.errors import UserError
from stages.lib.training.step_metrics import peak_memory_mb


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
    """Yield two steps per shape of transformers, and one per command."""
    for shape, equal in (speed.DRY_PROFILES if session.dry else speed.EQUAL).items():
        own = dataclasses.replace(
            equal[0], micro_batch_size=2, mode="full", **speed.IN_BFLOAT16, more=("--no-compile",)
        )
        for name, cells in ((f"transformers, {shape}", (own,)), (f"transformers as ours, {shape}", equal)):
            yield Step(name=name, take=functools.partial(_transformers, session, name, cells), minutes=3)
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


def _transformers(session, name, cells):
    require("transformers")
    cell, _ = speed.fitting(session, *cells)
    output = session.made / f"peers/{name.replace(' ', '_').replace(',', '')}.json"
    options = [cell.shape, output, "--seq-len", cell.seq_len, "--micro-batch-size", cell.micro_batch_size, *cell.more]
    options += ["--activation-checkpointing", cell.mode, "--weights-dtype", cell.weights_dtype]
    figures = speed.train(session, name, "benchmarks.gpu.peers", options, output)
    line = f"{figures['tokens_per_second']:,.0f} tokens/s"
    if ours := session.found.get(cell.name, {}).get("tokens_per_second"):
        line += f" (ours {ours:,.0f})"
    return f"{line}, peak {figures['peak_memory_mb'] * 1e6 / GIB:.1f} GiB; {figures['settings']}", figures


WARM_UP, STEPS = 2, 6


def build(torch, arguments, device):
    """Return (model, vocab_size) of `tiny`, or of the run in config/NAME.yaml."""
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # its own sdpa under another name, for which it makes no mask: a compiled model's would rule out flash attention
    AttentionInterface.register("sdpa_causal", sdpa_attention_forward)
    ours, vocab_size = train_gpu.model_of(arguments.shape)
    keys = {name: getattr(ours, name) for name in (*harness.SIZES, "tie_word_embeddings")}
    config = LlamaConfig(vocab_size=vocab_size, use_cache=False, attn_implementation="sdpa_causal", **keys)
    torch.set_default_dtype(getattr(torch, arguments.weights_dtype))
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if arguments.activation_checkpointing == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train(), vocab_size


def measure(torch, arguments, device):
    """Return the seconds of each step."""
    model, vocab_size = build(torch, arguments, device)
    network = torch.compile(model) if arguments.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    samples, size = DummySamples(vocab_size, arguments.seq_len, 0), arguments.micro_batch_size
    times = []
    for step in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        tokens, _ = samples.batch(range(step * size, (step + 1) * size))
        ids = torch.from_numpy(tokens).long().to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=arguments.weights_dtype == "float32"):
            loss = network(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return times


def main():
    """Measure transformers, and write the JSON file."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--activation-checkpointing", default="full", choices=("none", "full"))
    parser.add_argument("--weights-dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        times = measure(torch, arguments, device)
    except torch.OutOfMemoryError as error:
        print(str(error).partition(". GPU ")[0], file=sys.stderr)  # CUDA out of memory. Tried to allocate 2.00 GiB
        sys.exit(train_gpu.UNAVAILABLE)
    weights = "float32 weights under autocast" if arguments.weights_dtype == "float32" else "bfloat16 weights"
    checkpointing = "no" if arguments.activation_checkpointing == "none" else "gradient"
    found = {
        "tokens_per_second": arguments.micro_batch_size * arguments.seq_len / statistics.median(times[WARM_UP:]),
        "peak_memory_mb": peak_memory_mb(device),
        "settings": f"micro-batch {arguments.micro_batch_size}, {weights}, {checkpointing} checkpointing, fused AdamW"
        + ", compiled" * arguments.compile,
        "seconds": times,
    }
    arguments.output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
