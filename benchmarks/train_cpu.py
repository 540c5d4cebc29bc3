"""A training step on the CPU, beside transformers' and litgpt's Llama with the same config: speed and memory.

    python -m benchmarks.train_cpu                # about 5 minutes on 2 cores
    python -m benchmarks.train_cpu --shape tiny   # seconds: a smoke test

Each peer trains in its own process, all in float32 with fused AdamW on the same tokens. They take turns step by step,
so that other load on the machine slows all equally. transformers computes a plain cross-entropy, litgpt its chunked
cross-entropy, as in their own training. A peer that is not installed is skipped; litgpt is installed by
`pip install --no-deps litgpt lightning lightning-utilities torchmetrics jsonargparse`.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import report

PEERS = {"caravan": "torch", "transformers": "transformers", "litgpt": "litgpt"}
"""The package of each peer; ours needs only torch."""

SPEEDS = ("tokens_per_second", "tokens_per_cpu_second")
WARM_UP = 2
"""Steps before the first that counts: in them the optimizer's state is allocated."""

MODEL_FIELDS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Llama in the names of LlamaConfig, and a batch of `rows` x `length` tokens per step."""

    vocab_size: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    rows: int
    length: int


SHAPES = {
    "small": Shape(
        vocab_size=32000,
        num_hidden_layers=6,
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=688,
        rows=8,
        length=512,
    ),
    "tiny": Shape(
        vocab_size=300,
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=48,
        rows=2,
        length=32,
    ),
}


def caravan(shape):
    """Return a function that builds our Llama, its optimizer and its chunked loss."""
    from stages.lib.model.architectures.llama import LlamaRecipe
    from stages.lib.model.initialize import initialize
    from stages.lib.model.transformer import Transformer
    from stages.lib.training.optimizers import registry
    from stages.lib.training.optimizers.recipe import OptimizerRecipe

    def build():
        config = {name: value for name, value in asdict(shape).items() if name in MODEL_FIELDS}
        model = Transformer(LlamaRecipe(**config), shape.vocab_size)
        initialize(model, seed=0)

        def loss(tokens, targets):
            total, *_ = model(tokens, targets)
            return total / targets.numel()

        return model, registry.build(model, OptimizerRecipe()), loss

    return build


def transformers(shape):
    """Return a function that builds transformers' LlamaForCausalLM with a plain cross-entropy."""
    from torch.nn.functional import cross_entropy
    from transformers import LlamaConfig, LlamaForCausalLM

    def build():
        config = LlamaConfig(
            vocab_size=shape.vocab_size,
            num_hidden_layers=shape.num_hidden_layers,
            hidden_size=shape.hidden_size,
            num_attention_heads=shape.num_attention_heads,
            num_key_value_heads=shape.num_key_value_heads,
            intermediate_size=shape.intermediate_size,
            max_position_embeddings=shape.length,
        )
        model = LlamaForCausalLM(config)

        def loss(tokens, targets):
            logits = model(input_ids=tokens, use_cache=False).logits
            return cross_entropy(logits.flatten(0, 1), targets.flatten())

        return model, _adamw(model), loss

    return build


def litgpt(shape):
    """Return a function that builds litgpt's GPT in Llama's configuration, with the loss of its pretraining."""
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    def build():
        config = Config(
            vocab_size=shape.vocab_size,
            padded_vocab_size=shape.vocab_size,
            n_layer=shape.num_hidden_layers,
            n_embd=shape.hidden_size,
            n_head=shape.num_attention_heads,
            n_query_groups=shape.num_key_value_heads,
            intermediate_size=shape.intermediate_size,
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


def train(peer, shape, threads):
    """Take a step per line of stdin and print its time; print the size at the end of stdin. Output is lines of JSON."""
    import torch

    torch.set_num_threads(threads)
    build = {"caravan": caravan, "transformers": transformers, "litgpt": litgpt}[peer](shape)
    torch.optim.AdamW([torch.zeros(1)])  # the first optimizer imports a part of torch
    imported_mb = report.memory_mb("VmRSS")
    torch.manual_seed(0)
    model, optimizer, loss_of = build()
    tokens = torch.randint(0, shape.vocab_size, (shape.rows, shape.length + 1))
    for _ in sys.stdin:
        begun, used = time.perf_counter(), time.process_time()
        loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - used
        print(json.dumps({"loss": loss.item(), "seconds": seconds, "cpu_seconds": cpu_seconds}), flush=True)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    peak_mb = report.memory_mb("VmHWM") - imported_mb
    print(json.dumps({"parameters": parameters, "imported_mb": imported_mb, "peak_mb": peak_mb}), flush=True)


def take_turns(peers, arguments):
    """Let the peers take steps in turns, in a rotating order; returns (sizes by peer, an entry per step)."""
    options = [f"--shape={arguments.shape}", f"--threads={arguments.threads}"]
    command = [sys.executable, "-m", "benchmarks.train_cpu", *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    running = {peer: subprocess.Popen([*command, f"--only={peer}"], **pipes) for peer in peers}
    shape, found = SHAPES[arguments.shape], []
    for repeat in range(-WARM_UP, arguments.repeats):
        for place in range(len(peers)):
            peer = peers[(repeat + place) % len(peers)]
            running[peer].stdin.write("step\n")
            took = json.loads(running[peer].stdout.readline())
            speeds = [shape.rows * shape.length / took[name] for name in ("seconds", "cpu_seconds")]
            entry = {"repeat": repeat, "peer": peer, "load": os.getloadavg()[0], **took}
            found.append(entry | dict(zip(SPEEDS, speeds, strict=True)))
    sizes = {peer: json.loads(process.communicate()[0]) for peer, process in running.items()}
    return sizes, [entry for entry in found if entry["repeat"] >= 0]


def ratios(sizes, found):
    """Return {peer: {figure: ours / theirs}}, medians over the repeats: speed is better above 1, memory below."""
    by_peer = {peer: [entry for entry in found if entry["peer"] == peer] for peer in sizes}
    ours, compared = by_peer.pop("caravan"), {}
    for peer, theirs in by_peer.items():
        if sizes[peer]["parameters"] != sizes["caravan"]["parameters"]:
            raise AssertionError(f"{peer} must have as many parameters as ours, got {sizes[peer]}")
        compared[peer] = {
            speed: statistics.median(our[speed] / their[speed] for our, their in zip(ours, theirs, strict=True))
            for speed in SPEEDS
        }
        compared[peer]["peak_mb"] = sizes["caravan"]["peak_mb"] / sizes[peer]["peak_mb"]
    return compared


def installed():
    """Return the peers that are installed, ours first; print a line for each that is not."""
    peers = []
    for peer, package in PEERS.items():
        try:
            importlib.metadata.version(package)
            peers.append(peer)
        except importlib.metadata.PackageNotFoundError:
            print(f"{peer} is not installed: skipped")
    return peers


def main():
    """Measure all peers, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--repeats", type=int, default=15, help="steps of each peer that count")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/train_cpu.json"))
    parser.add_argument("--only", choices=PEERS, help="train this peer in this process, one step per line of stdin")
    arguments = parser.parse_args()
    if arguments.only:
        train(arguments.only, SHAPES[arguments.shape], arguments.threads)
        return
    peers = installed()
    sizes, found = take_turns(peers, arguments)
    figures = {
        "shape": asdict(SHAPES[arguments.shape]),
        "threads": arguments.threads,
        "ratios": ratios(sizes, found),
        "sizes": sizes,
        "repeats": found,
    }
    for peer, size in sizes.items():
        speed = statistics.median(entry["tokens_per_second"] for entry in found if entry["peer"] == peer)
        print(f"{peer:13} {speed:9,.0f} tokens/s {size['peak_mb']:7,.0f} MB above its imports")
    for peer, compared in figures["ratios"].items():
        print(f"caravan / {peer}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in compared.items()))
    report.write(arguments.output, "train_cpu", sorted({PEERS[peer] for peer in peers}), figures)


if __name__ == "__main__":
    main()
