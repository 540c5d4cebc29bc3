"""Training steps on one GPU with random tokens: tokens per second, MFU, peak memory.

    python -m benchmarks.train_gpu llama3-8b --seq-len 4096 --micro-batch-size 2 --activation-checkpointing full \\
        --state-dtype bfloat16
    python -m benchmarks.train_gpu llama3-1b --seq-len 4096 --micro-batch-size 4 --activation-checkpointing selective
    python -m benchmarks.train_gpu llama3-8b --seq-len 4096 --micro-batch-size 2 --state-dtype bfloat16 --float8
    python -m benchmarks.train_gpu tiny --steps 3        # also without a GPU: a smoke test

The step is that of training (`stages.lib.training.step`): bfloat16 forward and backward passes, float32 weights,
gradient clipping and AdamW. MFU is the share of the bfloat16 peak with --float8, too. Models are those of
config/NAME.yaml. Nothing is saved, and data comes from memory.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import yaml

from benchmarks import harness
from benchmarks.dummy import DOCUMENT_END, DummySamples
from stages.lib import recipe
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.model import flops
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.tokens.loader import share_of
from stages.lib.training.settings import requirements
from stages.lib.training.settings.recipe import MODES, TrainRecipe
from stages.lib.training.state import State
from stages.lib.training.step import Stepper
from stages.lib.training.step_metrics import Throughput

HOME = Path(__file__).resolve().parents[1]
TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
}
UNAVAILABLE = 3
"""Exit code if the kernels of an option are not available."""

WARM_UP = 3
"""Steps that are not measured: compilation, allocation, the optimizer's state."""


def shape_of(name):
    """Return (keys of the model, vocab_size) of `tiny`, or of the only run in config/NAME.yaml."""
    if name == "tiny":
        return TINY, 512
    config = yaml.safe_load((HOME / "config" / f"{name}.yaml").read_text(encoding="utf-8"))
    (run,), (tokenizer,) = config["runs"].values(), config["tokenizers"].values()
    return run["model"], tokenizer["vocab_size"]


def model_of(name):
    """Return (ModelRecipe, vocab_size) of `tiny`, or of the only run in config/NAME.yaml."""
    keys, vocab_size = shape_of(name)
    return recipe.load(ARCHITECTURES, keys, name), vocab_size


def keys_of(options, steps, mode, compiled):
    """Return the keys of the training recipe of the options of this command, or of a cell of benchmarks.gpu.speed."""
    return {
        "steps": steps,
        "seq_len": options.seq_len,
        "global_batch_size": options.micro_batch_size * options.accumulation,
        "micro_batch_size": options.micro_batch_size,
        "weights_dtype": options.weights_dtype,
        "optimizer": {"state_dtype": options.state_dtype},
        "activation_checkpointing": {"mode": mode},
        "compile": compiled,
        "float8": options.float8,
        "cuda_graphs": options.cuda_graphs,
    }


def measure(stepper, samples, train_recipe, throughput, device):
    """Return the throughput of each step after the warm-up; every step is synchronized."""
    entries, batch_size = [], train_recipe.global_batch_size
    for step in range(train_recipe.steps):
        begun = time.perf_counter()
        inputs, targets = samples.batch(share_of(step * batch_size, 0, 1, batch_size))
        waited = time.perf_counter() - begun
        numbers = dict(zip(stepper.names, stepper.take(step, inputs, targets).tolist(), strict=True))
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds, tokens = time.perf_counter() - begun, batch_size * train_recipe.seq_len
        entry = {"loss": numbers["loss"]} | throughput.step(seconds=seconds, data_wait=waited, tokens=tokens)
        if step >= WARM_UP:
            entries.append(entry)
        print(f"step {step + 1}: loss {entry['loss']:.3f}, {entry['tokens_per_second']:,.0f} tokens/s", flush=True)
    return entries


def profile(stepper, samples, train_recipe, device, prefix):
    """Take one more step, and write the table of its kernels and its trace."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    batch = samples.batch(range(train_recipe.global_batch_size))
    with torch.profiler.profile() as found:
        stepper.take(train_recipe.steps - 1, *batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
    order = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    prefix.with_suffix(".txt").write_text(found.key_averages().table(sort_by=order, row_limit=60), encoding="utf-8")
    found.export_chrome_trace(f"{prefix}.json.gz")


def check_device(train_recipe, model_config, device, has_document_mask):
    """End with UNAVAILABLE if float8 or CUDA graphs cannot be used here."""
    try:
        requirements.check(train_recipe, "options", model_config, has_lora=False, has_document_mask=has_document_mask)
        requirements.check_device(train_recipe, "options", device)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(UNAVAILABLE)


@contextlib.contextmanager
def attention(name):
    """Choose the kernels of scaled_dot_product_attention: its own order, one backend first, or FlashAttention-3."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch.nn import attention as kernels

    if name != "torch":  # torch's key of a compiled block leaves out the order of backends
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache_dir()}-{name}"
    if name == "fa3":
        try:
            kernels.activate_flash_attention_impl("FA3")
        except (AttributeError, ImportError, RuntimeError, ValueError) as error:  # an older torch, or no package
            print(f"FlashAttention-3 cannot be used: {error}", file=sys.stderr)
            sys.exit(UNAVAILABLE)
    backends = kernels.SDPBackend
    orders = {
        "cudnn": [backends.CUDNN_ATTENTION, backends.FLASH_ATTENTION, backends.EFFICIENT_ATTENTION, backends.MATH],
        "flash": [backends.FLASH_ATTENTION, backends.EFFICIENT_ATTENTION, backends.MATH],
        "math": [backends.MATH],
    }
    with kernels.sdpa_kernel(orders[name], set_priority=True) if name in orders else contextlib.nullcontext():
        yield


def main():
    """Measure, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", help="tiny, or NAME of config/NAME.yaml")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--steps", type=int, default=20, help="steps after the warm-up")
    parser.add_argument("--activation-checkpointing", default="none", choices=MODES)
    parser.add_argument("--state-dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--weights-dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--float8", action="store_true", help="products of the blocks in float8")
    parser.add_argument("--cuda-graphs", action="store_true", help="each micro-batch as one CUDA graph")
    parser.add_argument(
        "--document-length", type=int, metavar="TOKENS", help="mean length of documents, to which attention is kept"
    )
    parser.add_argument("--attention", default="torch", choices=("torch", "cudnn", "flash", "math", "fa3"))
    parser.add_argument("--profile", type=Path, metavar="PREFIX", help="write PREFIX.txt and PREFIX.json.gz of a step")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/train_gpu-SHAPE.json")
    arguments = parser.parse_args()
    model_config, vocab_size = model_of(arguments.shape)
    mode = arguments.activation_checkpointing
    keys = keys_of(arguments, WARM_UP + arguments.steps, mode, arguments.compile)
    train_recipe = recipe.load(TrainRecipe, keys, "benchmark")
    with process_group() as device, attention(arguments.attention):
        length = arguments.document_length
        check_device(train_recipe, model_config, device, length is not None)
        state = State(train_recipe, model_config, vocab_size, device)
        samples = DummySamples(vocab_size, train_recipe.seq_len, train_recipe.seed, length)
        state.init_weights()
        stepper = Stepper(train_recipe, state, device, None if length is None else DOCUMENT_END)
        throughput = Throughput(model_config, vocab_size, train_recipe.seq_len, 1, device, (mode, None))
        entries = measure(stepper, samples, train_recipe, throughput, device)
        if arguments.profile:
            profile(stepper, samples, train_recipe, device, arguments.profile)
    medians = {}
    for name in ("tokens_per_second", "mfu", "hfu"):
        values = [entry[name] for entry in entries]
        is_known = all(isinstance(value, float) for value in values)
        medians[name] = statistics.median(values) if is_known else values[0]
    figures = {
        "parameters": flops.parameter_count(model_config, vocab_size),
        **medians,
        "peak_memory_mb": entries[-1]["memory_mb"],
        **throughput.facts(),
        "steps": entries,
    }
    print("{tokens_per_second:,.0f} tokens/s, MFU {mfu}, peak {peak_memory_mb:,} MB".format(**figures))
    output = arguments.output or HOME / f"benchmarks/results/train_gpu-{arguments.shape}.json"
    harness.write(output, "train_gpu", ("torch",), figures)


if __name__ == "__main__":
    main()
