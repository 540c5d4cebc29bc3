"""Plans as text: a paragraph per run, those with equal plans in one, and what all need together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.plan.devices import FRAGMENTATION, GIB, RESERVED

Figures = Mapping[str, Any]
MIB = 1 << 20
NAMED = 6  # runs with the same plan that are named
UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def of_runs(paragraphs: Mapping[str, str], plans: Mapping[str, Figures]) -> str:
    """Return all plans. `paragraphs`: {run: the lines of its plan}."""
    runs: dict[str, list[str]] = {}
    for name, paragraph in paragraphs.items():
        runs.setdefault(paragraph, []).append(name)
    parts = [f"{_title(names)}\n{paragraph}" for paragraph, names in runs.items()]
    return "\n\n".join([*parts, *([_together(plans)] if len(plans) > 1 else [])]) + "\n"


def _title(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"run{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}"


def _together(plans: Mapping[str, Figures]) -> str:
    """Return a line on what all runs need, of those that have each figure."""
    known = [plan for plan in plans.values() if "unknown" not in plan]
    disk = sum(plan["disk"].get("checkpoints_bytes", 0) + plan["disk"].get("exports_bytes", 0) for plan in known)
    times = [plan["time"] for plan in known if plan["time"] is not None and "gpu_hours" in plan["time"]]
    parts = [f"{_size(disk)} of checkpoints and exports"]
    if times:
        of = "" if len(times) == len(plans) else f" (of {len(times)} runs)"
        parts.append(f"{_hours(sum(time['gpu_hours'] for time in times))} in {_jobs(times)}{of}")
    if costs := [time["cost"] for time in times if time["cost"] is not None]:
        parts.append(f"cost {sum(costs):,.2f}")
    return f"all {len(plans)} runs: {', '.join(parts)}"


def _hours(hours: float) -> str:
    return f"{_three(hours)} GPU-hours"


def _three(number: float) -> str:
    """Return a number with three digits, without an exponent."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}" if number >= 0.001 else "less than 0.001"


def _duration(days: float) -> str:
    """Return a time in days, or in a smaller unit if it is less than one."""
    for unit, size in (("days", 1), ("hours", 24), ("minutes", 1440)):
        if days * size >= 1:
            return f"{_three(days * size)} {unit}"
    return f"{_three(days * 86400)} seconds"


def _jobs(times: Sequence[Figures]) -> str:
    count = sum(time["jobs"] for time in times)
    return f"{count:,} job{'s' if count > 1 else ''}"


def of_run(plan: Figures) -> str:
    """Return the lines of a run's plan, without its name."""
    lines = {
        "model": _model(plan["model"]),
        "batch": _batch(plan["batch"]),
        "memory": _memory(plan["memory"]),
        "of it": _parts(plan["memory"]["parts"]),
        "data": _data(plan["data"]),
        "eval": _validation(plan["batch"]),
        "disk": _disk(plan["disk"]),
        "time": _time(plan["time"]),
    }
    return "\n".join(f"  {label:<7} {text}" for label, text in lines.items())


def short(number: float) -> str:
    """Return a number with three digits and k, M, B or T."""
    for size, unit in UNITS:
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def _size(number: int) -> str:
    return f"{number / GIB:,.2f} GiB" if number >= GIB else f"{number / MIB:,.1f} MiB"


def _model(model: Figures) -> str:
    parameters, active, trained = (model[key] for key in ("parameters", "active_parameters", "trained_parameters"))
    more = f", {active:,} per token" if active != parameters else ""
    more += f", {trained:,} trained" if trained != parameters else ""
    repeated = model["repeated_flops_per_token"]
    again = f" and {repeated:,} repeated" if repeated else ""
    return f"{parameters:,} parameters{more}; {model['flops_per_token']:,} FLOPs per token{again}"


def _batch(batch: Figures) -> str:
    ranks = f"{batch['ranks']} rank{'s' if batch['ranks'] > 1 else ''}"
    total = "" if batch["tokens"] is None else f", {batch['steps']:,} steps, {short(batch['tokens'])} tokens"
    more = ", float8" * batch["float8"] + ", CUDA graphs" * batch["cuda_graphs"]
    return (
        f"{batch['global_batch_size']} samples = {ranks} x {batch['micro_batch_size']} per micro-batch "
        f"x {batch['gradient_accumulation_steps']}; {batch['tokens_per_step']:,} tokens per step{total}; sharding "
        f"{batch['sharding']}, activation checkpointing {batch['activation_checkpointing']}{more}"
    )


def _memory(memory: Figures) -> str:
    peak = f"{_size(memory['peak_bytes'])} per rank at the peak (in: {memory['at']})"
    host = f"; {_size(memory['host_bytes_per_node'])} of CPU memory per node for checkpoints and what is offloaded"
    if "device" not in memory:
        return f"{peak}{host}; no GPU is named: whether it fits is not known"
    verdict = "fits" if memory["fits"] else "DOES NOT FIT"
    margin = f"{(FRAGMENTATION - 1):.0%} for fragmentation and {_size(RESERVED)} for CUDA and NCCL"
    return (
        f"{peak}, {_size(memory['needed_bytes'])} with {margin}: {verdict} the {memory['device']} "
        f"({_size(memory['device_bytes'])}){host}"
    )


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{part.replace('_', ' ')} {_size(size)}" for part, size in parts.items() if size)


def _data(data: Figures | None) -> str:
    if data is None:
        return "tokens per source are not known before the examples are encoded"
    return ", ".join(
        f"{source} {short(part['tokens'])} tokens {_epochs(part['epochs'])}" for source, part in data.items()
    )


def _validation(batch: Mapping[str, Any]) -> str:
    if "evaluations" not in batch:
        return "the number of evaluations is not known before the examples are encoded"
    return (
        f"{batch['evaluations']:,} times at most {short(batch['validation_tokens'])} tokens of the validation split: "
        f"{batch['validation_share']:.1%} of the time of the steps"
    )


def _epochs(epochs: float | None) -> str:
    return "(epochs not known: the corpus does not exist yet)" if epochs is None else f"({epochs:.2f} epochs)"


def _disk(disk: Figures) -> str:
    each = f"{_size(disk['checkpoint_bytes'])} per checkpoint"
    if "checkpoints" not in disk:
        return each
    return (
        f"{each}, at most {disk['checkpoints']} at a time ({_size(disk['checkpoints_bytes'])}); exports "
        f"{_size(disk['exports_bytes'])}"
    )


def _time(time: Figures | None) -> str:
    if time is None:
        return (
            "not known: name a GPU and an MFU (--mfu), or tokens per second per GPU (--tokens-per-second); no run "
            "directory of these results has an MFU of this GPU"
        )
    rate = f"{time['tokens_per_second']:,.0f} tokens/s per GPU ({time['source']})"
    speed = f"{rate}, {_three(time['step_seconds'])} s per step"
    if "days" not in time:
        return speed
    cost = "" if time["cost"] is None else f", cost {time['cost']:,.2f}"
    more = "" if time.get("limit_minutes") else " (no time limit is given)"
    jobs = f"{_jobs([time])}{more}"
    return f"{speed}; {_duration(time['days'])} in {jobs}, {_hours(time['gpu_hours'])}{cost}"
