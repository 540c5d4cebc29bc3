"""A training step on the CPU beside transformers' and litgpt's Llama of the same shape: speed and memory.

    python -m benchmarks.train_cpu                # about 10 minutes on 2 cores
    python -m benchmarks.train_cpu --shape tiny   # seconds: shows that everything runs, and measures nothing

Each peer trains in a process of its own, in turns, all in float32 with fused AdamW on the same tokens. transformers
computes a plain cross-entropy, litgpt its chunked one, both as their own training does. A peer that is not installed is
passed by; litgpt needs `pip install --no-deps litgpt lightning lightning-utilities torchmetrics jsonargparse`.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

PEERS = {"caravan": "torch", "transformers": "transformers", "litgpt": "litgpt"}
"""The package that each peer is of; ours needs torch alone."""

RATIOS = ("tokens_per_second", "tokens_per_cpu_second", "peak_mb")
WARM_UP = 2
"""Steps before the clock starts: the first makes the optimizer's state, and memory is mapped."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Llama, and a step's batch of `rows` x `length` tokens."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    rows: int
    length: int


SHAPES = {
    "small": Shape(vocabulary=32000, layers=6, width=256, heads=4, kv_heads=2, hidden=688, rows=8, length=512),
    "tiny": Shape(vocabulary=300, layers=1, width=32, heads=2, kv_heads=1, hidden=48, rows=2, length=32),
}


def caravan(shape):
    """Our Llama, its chunked loss and its optimizer: (loss of tokens and targets, parameters, optimizer)."""
    from stages.lib.model import Llama, ModelRecipe
    from stages.lib.training import optimizer
    from stages.lib.training.initialize import initialize
    from stages.lib.training.optimizer import OptimizerRecipe

    def build():
        fields = ("layers", "width", "heads", "kv_heads", "hidden")
        model = Llama(ModelRecipe(**{name: getattr(shape, name) for name in fields}), shape.vocabulary)
        initialize(model, seed=0)

        def loss(tokens, targets):
            total, _ = model(tokens, targets)
            return total / targets.numel()

        return model, optimizer.build(model, OptimizerRecipe()), loss

    return build


def transformers(shape):
    """transformers' LlamaForCausalLM with a plain cross-entropy."""
    from torch.nn.functional import cross_entropy
    from transformers import LlamaConfig, LlamaForCausalLM

    def build():
        config = LlamaConfig(
            vocab_size=shape.vocabulary,
            num_hidden_layers=shape.layers,
            hidden_size=shape.width,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            intermediate_size=shape.hidden,
            max_position_embeddings=shape.length,
        )
        model = LlamaForCausalLM(config)

        def loss(tokens, targets):
            logits = model(input_ids=tokens, use_cache=False).logits
            return cross_entropy(logits.flatten(0, 1), targets.flatten())

        return model, _adamw(model), loss

    return build


def litgpt(shape):
    """litgpt's GPT in Llama's configuration, with the loss of its pretraining."""
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    def build():
        config = Config(
            vocab_size=shape.vocabulary,
            padded_vocab_size=shape.vocabulary,
            n_layer=shape.layers,
            n_embd=shape.width,
            n_head=shape.heads,
            n_query_groups=shape.kv_heads,
            intermediate_size=shape.hidden,
            block_size=shape.length,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
        )
        model = GPT(config)

        def loss(tokens, targets):
            return chunked_cross_entropy(model(tokens), targets)

        return model, _adamw(model), loss

    return build


def _adamw(model):
    import torch

    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def measure(peer, shape, steps, threads):
    """Train `steps` steps after the warm-up; returns what one repeat found, as plain data."""
    import torch

    torch.set_num_threads(threads)
    build = {"caravan": caravan, "transformers": transformers, "litgpt": litgpt}[peer](shape)
    torch.optim.AdamW([torch.zeros(1)])  # the first optimizer imports a part of torch
    imported_mb = _memory_mb("VmRSS")
    torch.manual_seed(0)
    model, optimizer, loss_of = build()
    tokens = torch.randint(0, shape.vocabulary, (shape.rows, shape.length + 1))
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            begun, used = time.perf_counter(), time.process_time()
        loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    count = steps * shape.rows * shape.length
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - used
    return {
        "peer": peer,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "last_loss": loss.item(),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,  # of all threads
        "tokens_per_second": count / seconds,
        "tokens_per_cpu_second": count / cpu_seconds,
        "imported_mb": imported_mb,
        "peak_mb": _memory_mb("VmHWM") - imported_mb,
    }


def _memory_mb(name):
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) / 1024


def take_turns(peers, arguments):
    """Measure each peer `repeats` times, one after the other; the order turns, so that none is always first."""
    found = []
    for repeat in range(arguments.repeats):
        for place in range(len(peers)):
            peer = peers[(repeat + place) % len(peers)]
            options = [f"--shape={arguments.shape}", f"--steps={arguments.steps}", f"--threads={arguments.threads}"]
            command = [sys.executable, "-m", "benchmarks.train_cpu", f"--only={peer}", *options]
            load = os.getloadavg()[0]
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append({"repeat": repeat, "load": load} | json.loads(ended.stdout.splitlines()[-1]))
            print("{peer:13} {tokens_per_second:8,.0f} tokens/s {peak_mb:6,.0f} MB".format(**found[-1]), flush=True)
    return found


def ratios(found, peers):
    """{peer: {figure: median over the repeats of ours / theirs}}; memory is better below 1, speed above."""
    by_peer = {peer: [entry for entry in found if entry["peer"] == peer] for peer in peers}
    for entries in by_peer.values():
        if entries[0]["parameters"] != found[0]["parameters"]:
            raise AssertionError("the peers must have equally many parameters")
    return {
        peer: {
            figure: statistics.median(
                ours[figure] / theirs[figure] for ours, theirs in zip(by_peer["caravan"], by_peer[peer], strict=True)
            )
            for figure in RATIOS
        }
        for peer in peers
        if peer != "caravan"
    }


def installed():
    """The peers that can be measured here, ours first; a line is printed for each that cannot."""
    peers = []
    for peer, package in PEERS.items():
        try:
            importlib.metadata.version(package)
            peers.append(peer)
        except importlib.metadata.PackageNotFoundError:
            print(f"{peer} is not installed: it is left out")
    return peers


def hardware():
    """The processor and the memory of this machine."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0].partition(":")[2].strip() if names else platform.machine()
    return {"processor": processor, "cores": os.cpu_count(), "memory_gb": round(memory_gb, 1)}


def main():
    """Measure all peers and write what was found, or, with --only, measure one and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="steps a repeat, after the warm-up")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, help="a JSON file for every repeat, the ratios, versions and hardware")
    parser.add_argument("--only", choices=PEERS, help="measure this peer once, in this process, and print JSON")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only, SHAPES[arguments.shape], arguments.steps, arguments.threads)))
        return
    peers = installed()
    found = take_turns(peers, arguments)
    result = {
        "command": "python -m benchmarks.train_cpu " + " ".join(sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "shape": asdict(SHAPES[arguments.shape]),
        "threads": arguments.threads,
        "hardware": hardware(),
        "versions": {"python": platform.python_version()}
        | {package: importlib.metadata.version(package) for package in {PEERS[peer] for peer in peers}},
        "ratios": ratios(found, peers),
        "repeats": found,
    }
    for peer, figures in result["ratios"].items():
        print(f"caravan / {peer}: " + ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items()))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
