"""A training step on the CPU, beside transformers' and litgpt's Llama with the same config: speed and memory.

    python -m benchmarks.train_cpu                # about 5 minutes on 2 cores
    python -m benchmarks.train_cpu --shape tiny   # seconds: a smoke test

Each peer trains in its own process, all in float32 with fused AdamW on the same tokens. They take turns step by step,
so that other load on the machine slows all equally. transformers computes a plain cross-entropy, litgpt its chunked
cross-entropy, as in their own training. A peer that is not installed is skipped; litgpt is installed by
`pip install --no-deps litgpt lightning lightning-utilities torchmetrics jsonargparse`.
"""

import json
import os
import sys
import time

from benchmarks import harness
from benchmarks.harness import SIZES

PEERS = {"caravan": ["torch"], "transformers": ["transformers"], "litgpt": ["litgpt"]}
"""The packages of each peer; ours needs only torch."""

WARM_UP = 2
"""Steps before the first that counts: in them the optimizer's state is allocated."""

SHAPES = {
    "small": {"vocab_size": 32000, "rows": 8, "length": 512} | dict(zip(SIZES, (6, 256, 4, 2, 688), strict=True)),
    "tiny": {"vocab_size": 300, "rows": 2, "length": 32} | dict(zip(SIZES, (1, 32, 2, 1, 48), strict=True)),
}
"""A Llama in the names of LlamaConfig, and a batch of `rows` x `length` tokens per step."""


def caravan(shape):
    """Return a function that builds our Llama, its optimizer and its chunked loss."""
    from stages.lib.model.architectures import LlamaRecipe
    from stages.lib.model.initialize import initialize
    from stages.lib.model.transformer import Transformer
    from stages.lib.training.optimizers import registry
    from stages.lib.training.optimizers.recipe import OptimizerRecipe

    def build():
        model = Transformer(LlamaRecipe(**{name: shape[name] for name in SIZES}), shape["vocab_size"])
        initialize(model, seed=0)
        optimizer = registry.build(model, OptimizerRecipe())
        return model, optimizer, lambda tokens, targets: model(tokens, targets)[0] / targets.numel()

    return build


def transformers(shape):
    """Return a function that builds transformers' LlamaForCausalLM with a plain cross-entropy."""
    from torch.nn.functional import cross_entropy
    from transformers import LlamaConfig, LlamaForCausalLM

    def build():
        sizes = {name: shape[name] for name in ("vocab_size", *SIZES)}
        model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=shape["length"]))

        def loss(tokens, targets):
            logits = model(input_ids=tokens, use_cache=False).logits
            return cross_entropy(logits.flatten(0, 1), targets.flatten())

        return model, _adamw(model), loss

    return build


def litgpt(shape):
    """Return a function that builds litgpt's GPT in Llama's configuration, with the loss of its pretraining."""
    from litgpt import GPT
    from litgpt.utils import chunked_cross_entropy

    def build():
        model = GPT(harness.litgpt_config(shape, shape["vocab_size"], shape["length"]))
        return model, _adamw(model), lambda tokens, targets: chunked_cross_entropy(model(tokens), targets)

    return build


def _adamw(model):
    import torch

    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def train(peer, shape, threads):
    """Take a step per line of stdin and print its time as a line of JSON; return the size at the end of stdin."""
    import torch

    torch.set_num_threads(threads)
    build = {"caravan": caravan, "transformers": transformers, "litgpt": litgpt}[peer](shape)
    torch.optim.AdamW([torch.zeros(1)])  # the first optimizer imports a part of torch
    imported_mb = harness.memory_mb("VmRSS")
    torch.manual_seed(0)
    tokens = torch.randint(0, shape["vocab_size"], (shape["rows"], shape["length"] + 1))  # before any peer's weights
    model, optimizer, loss_of = build()
    for _ in sys.stdin:
        begun, used = time.perf_counter(), time.process_time()
        loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - used
        print(json.dumps({"loss": loss.item(), "seconds": seconds, "cpu_seconds": cpu_seconds}), flush=True)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    peak_mb = harness.memory_mb("VmHWM") - imported_mb
    return {"parameters": parameters, "imported_mb": imported_mb, "peak_mb": peak_mb}


def main():
    """Measure all peers, and write the JSON file."""
    parser = harness.parser_of(__doc__, "train_cpu")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--repeats", type=int, default=15, help="steps of each peer that count")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    peers, shape = harness.installed(PEERS), SHAPES[arguments.shape]
    commands = {peer: harness.command_of("train_cpu", "train", peer, shape, arguments.threads) for peer in peers}
    turns, sizes = harness.take_turns(commands, arguments.repeats, WARM_UP)
    medians, ratios = harness.medians(turns), {}
    for peer, size in sizes.items():
        speed = shape["rows"] * shape["length"] / medians[peer]["seconds"]
        print(f"{peer:13} {speed:9,.0f} tokens/s {size['peak_mb']:7,.0f} MB above its imports")
        if size["parameters"] != sizes["caravan"]["parameters"]:
            raise AssertionError(f"{peer} has {size['parameters']} parameters, ours {sizes['caravan']['parameters']}")
        if peer != "caravan":
            ratios[peer] = harness.speeds(turns, peer) | {"peak_mb": sizes["caravan"]["peak_mb"] / size["peak_mb"]}
    harness.print_ratios(ratios)
    figures = {"shape": shape, "threads": arguments.threads, "ratios": ratios, "sizes": sizes, "turns": turns}
    harness.write(arguments.output, "train_cpu", sorted(package for peer in peers for package in PEERS[peer]), figures)


if __name__ == "__main__":
    main()
