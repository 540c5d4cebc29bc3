"""Peak memory and speed of a LoRA training on the CPU, beside a full one of the same model.

    python -m benchmarks.lora                # minutes on 2 cores: 110 M parameters
    python -m benchmarks.lora --shape tiny   # seconds: a smoke test

Each training has its own process and takes training's own steps (`stages.lib.training.step`) with random tokens, one
rank, and no checkpoints. The peak is that above the memory after the imports.
"""

import argparse
import time

import torch

from benchmarks import harness
from benchmarks.dummy import DummySamples
from stages.lib import recipe
from stages.lib.distributed.process_group import process_group
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.key_table import LoraRecipe
from stages.lib.tokens.loader import share_of
from stages.lib.training.settings.recipe import TrainRecipe
from stages.lib.training.state import State
from stages.lib.training.step import Stepper
from tools.ablate.cell import RandomBase

SHAPES = {
    "small": {
        **{"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048},
        "tie_word_embeddings": True,
    },
    "tiny": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96},
}
VOCAB_SIZES = {"small": 32000, "tiny": 512}
KINDS = ("full", "lora")


def train(kind, options):
    """Train in this process; return the figures."""
    arguments = argparse.Namespace(**options)
    torch.set_num_threads(arguments.threads)
    data = {"steps": arguments.steps, "seq_len": arguments.seq_len, "dtype": arguments.dtype}
    data["global_batch_size"] = arguments.batch_size
    train_recipe, vocab_size = recipe.load(TrainRecipe, data, "benchmark"), VOCAB_SIZES[arguments.shape]
    model_config = recipe.load(ARCHITECTURES, SHAPES[arguments.shape], "benchmark")
    torch.optim.AdamW([torch.zeros(1)])  # the first optimizer imports a part of torch
    with process_group() as device:
        imported_mb = harness.memory_mb("VmRSS")
        lora = LoraRecipe(rank=arguments.rank) if kind == "lora" else None
        state = State(train_recipe, model_config, vocab_size, device, lora)
        state.init_weights(RandomBase() if lora else None)
        stepper, samples = Stepper(train_recipe, state, device), DummySamples(vocab_size, arguments.seq_len, 0)
        seconds = []
        for step in range(arguments.steps):
            batch = samples.batch(share_of(step * arguments.batch_size, 0, 1, arguments.batch_size))
            begun = time.perf_counter()
            stepper.take(step, *batch)
            seconds.append(time.perf_counter() - begun)
        return {
            "kind": kind,
            "parameters": state.num_parameters(),
            "trained_parameters": state.num_trained(),
            "checkpoint_mb": state.num_bytes()[1] / 2**20,
            "imported_mb": imported_mb,
            "peak_mb": harness.memory_mb("VmHWM") - imported_mb,
            "seconds": seconds,
        }


def main():
    """Measure both, and write the JSON file."""
    parser = harness.parser_of(__doc__, "lora")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=1, help="samples per step")
    parser.add_argument("--steps", type=int, default=3, help="the first allocates the optimizer's state")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    runs = {}
    for kind in KINDS:
        runs[kind] = harness.call("lora", "train", kind, vars(arguments))
        middle = sorted(runs[kind]["seconds"])[arguments.steps // 2]
        print("{kind}: {peak_mb:,.0f} MB above the imports, {0:.2f} s per step".format(middle, **runs[kind]))
    ratio = runs["lora"]["peak_mb"] / runs["full"]["peak_mb"]
    print(f"peak memory, lora / full: {ratio:.2f}")
    shape = SHAPES[arguments.shape] | {"vocab_size": VOCAB_SIZES[arguments.shape]}
    options = {name: getattr(arguments, name) for name in ("rank", "dtype", "seq_len", "batch_size", "threads")}
    harness.write(arguments.output, "lora", ("torch",), {"shape": shape, **options, "ratio": ratio, "runs": runs})


if __name__ == "__main__":
    main()
