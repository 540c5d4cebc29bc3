"""Planned peak memory of training steps beside measured ones, on the CPU: seven shapes and shardings.

    python -m benchmarks.plan                  # minutes on 2 cores
    python -m benchmarks.plan --cases tiny     # seconds: a smoke test

The plan is that of `tools.plan` for the CPU: the step under FakeTensorMode with a fake process group. The measurement
is the same step by as many processes over gloo, on random tokens. Memory is what torch's CPU allocator hands out, as
torch.profiler records it: the largest sum of the first rank within the second step, the median of several trainings.
Buffers that libraries allocate elsewhere (oneDNN's, the Python process) are in neither.
"""

import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks import harness
from tools.plan import memory, subject

LLAMA = {"num_attention_heads": 8, "max_position_embeddings": 1024}
SMALL = LLAMA | {"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1408}
WIDE = LLAMA | {"num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 2816, "num_key_value_heads": 2}
QWEN = SMALL | {"architecture": "qwen3", "head_dim": 128, "num_key_value_heads": 4, "tie_word_embeddings": True}
MIXTRAL = SMALL | {"architecture": "mixtral", "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
TINY = LLAMA | {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96}
KEYS = {"steps": 3, "seq_len": 512, "global_batch_size": 4, "dtype": "float32"}
CASES = {
    "full": (2, SMALL, 8192, {"sharding": "full", "micro_batch_size": 2}),
    "grad, accumulated": (2, SMALL, 8192, {"sharding": "grad", "micro_batch_size": 1}),
    "none, selective": (
        2,
        WIDE,
        16384,
        {"sharding": "none", "micro_batch_size": 2, "activation_checkpointing": {"mode": "selective"}},
    ),
    "hybrid, full recomputation": (
        4,
        SMALL,
        32768,
        {"sharding": "hybrid-full", "shard_degree": 2, "activation_checkpointing": {"mode": "full"}},
    ),
    "bfloat16, tied": (2, QWEN, 16384, {"dtype": "bfloat16", "micro_batch_size": 2, "sharding": "full"}),
    "experts, bfloat16 moments": (
        2,
        MIXTRAL,
        8192,
        {"sharding": "full", "micro_batch_size": 1, "optimizer": {"state_dtype": "bfloat16"}},
    ),
    "one rank": (1, WIDE, 8192, {"micro_batch_size": 4}),
}
REPEATS = 3
"""Measurements, of which the median counts: a rank that waits for another holds the buffers of two all-gathers.

Each is a process of its own with two steps: the profiler keeps some of gloo's buffers alive, more with every step.
"""

SETS = {"all": list(CASES), "tiny": ["tiny"]}
CASES["tiny"] = (2, TINY, 512, {"micro_batch_size": 2})


def recipe_of(name):
    """Return the recipe of a case."""
    _, model, vocab_size, keys = CASES[name]
    return subject.load("pretrain", KEYS | keys, model, vocab_size, "benchmark")


def measure(name, output):
    """Take steps as one rank of a case; the first one writes its peak in bytes to a file."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.dummy import DummySamples
    from stages.lib.distributed.process_group import process_group
    from stages.lib.tokens.loader import share_of
    from stages.lib.training.state import State
    from stages.lib.training.step import Stepper

    recipe = recipe_of(name)
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1)])  # the first optimizer imports a part of torch
    with process_group() as device, profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        state = State(recipe, recipe.model, recipe.vocab_size, device)
        state.init_weights()
        stepper, samples = Stepper(recipe, state, device), DummySamples(recipe.vocab_size, recipe.seq_len, 0)
        for step in range(2):
            first = step * recipe.global_batch_size
            batch = samples.batch(share_of(first, dist.get_rank(), dist.get_world_size(), recipe.global_batch_size))
            with torch.profiler.record_function(f"step {step}"):
                stepper.take(step, *batch)
        rank = dist.get_rank()
    if rank == 0:
        Path(output).write_text(json.dumps(peak_of(profiler)))


def peak_of(profiler):
    """Return the largest sum of allocated bytes within the second step."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    (step,) = [event for event in events if event.get("name") == "step 1" and event.get("cat") == "user_annotation"]
    begun, ended = step["ts"], step["ts"] + step["dur"]
    memory_events = [event for event in events if event.get("name") == "[memory]"]
    return max(e["args"]["Total Allocated"] for e in memory_events if begun <= e["ts"] <= ended)


def measured(name):
    """Return the measured peak of a case in bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "peak.json"
        command = harness.launched(CASES[name][0], harness.command_of("plan", "measure", name, output))
        subprocess.run(command, check=True, env=harness.environment())
        return json.loads(output.read_text())


def case(name):
    """Return the figures of a case: planned and measured bytes."""
    ranks = CASES[name][0]
    peaks = [measured(name) for _ in range(REPEATS)]
    planned, peak = (
        memory.memory_of(subject.Subject(recipe_of(name), ranks, ranks), gpu=None),
        statistics.median(peaks),
    )
    figures = {"planned": planned.peak, "parts": planned.parts, "measured": peak, "peaks": peaks}
    return figures | {"ratio": planned.peak / peak}


def main():
    """Plan and measure all cases, print them, and write the JSON file."""
    parser = harness.parser_of(__doc__, "plan")
    parser.add_argument("--cases", choices=SETS, default="all")
    arguments = parser.parse_args()
    cases = {}
    for name in SETS[arguments.cases]:
        cases[name] = case(name)
        print("{0}: planned {planned:,} bytes, measured {measured:,}, ratio {ratio:.3f}".format(name, **cases[name]))
    settings = {name: dict(zip(("ranks", "model", "vocab_size", "keys"), CASES[name], strict=True)) for name in cases}
    harness.write(arguments.output, "plan", ("torch",), {"keys": KEYS, "settings": settings, "cases": cases})


if __name__ == "__main__":
    main()
