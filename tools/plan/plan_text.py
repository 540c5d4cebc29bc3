"""Plans as text: a paragraph per run, those with equal plans in one, and what all need together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.lib.render.numbers import duration, several, short, three_digits
from stages.lib.space import amount
from tools.plan.devices import FRAGMENTATION, RESERVED

Figures = Mapping[str, Any]
NAMED = 6  # runs with the same plan that are named


def of_runs(paragraphs: Mapping[str, str], plans: Mapping[str, Figures]) -> str:
    """Return all plans. `paragraphs`: {run: the lines of its plan}."""
    runs: dict[str, list[str]] = {}
    for name, paragraph in paragraphs.items():
        runs.setdefault(paragraph, []).append(name)
    parts = []
    for paragraph, names in runs.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        parts.append(f"run{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}\n{paragraph}")
    return "\n\n".join([*parts, *([_together(plans)] if len(plans) > 1 else [])]) + "\n"


def _together(plans: Mapping[str, Figures]) -> str:
    """Return a line on what all runs need, of those that have each figure."""
    known = [plan for plan in plans.values() if "unknown" not in plan]
    disk = sum(plan["disk"].get("checkpoints_bytes", 0) + plan["disk"].get("exports_bytes", 0) for plan in known)
    times = [plan["time"] for plan in known if plan["time"] is not None and "gpu_hours" in plan["time"]]
    parts = [f"{amount(disk)} of checkpoints and exports"]
    if times:
        of = "" if len(times) == len(plans) else f" (of {len(times)} runs)"
        hours, jobs = (sum(time[key] for time in times) for key in ("gpu_hours", "jobs"))
        parts.append(f"{_hours(hours)} in {several(jobs, 'job')}{of}")
    if costs := [time["cost"] for time in times if time["cost"] is not None]:
        parts.append(f"cost {sum(costs):,.2f}")
    return f"all {len(plans)} runs: {', '.join(parts)}"


def _hours(hours: float) -> str:
    return f"{three_digits(hours)} GPU-hours"


def of_run(plan: Figures) -> str:
    """Return the lines of a run's plan, without its name."""
    data, parts, batch = plan["data"], plan["memory"]["parts"], plan["batch"]
    of_sources = "tokens per source are not known before the examples are encoded"
    if data is not None:
        no_epochs = "epochs not known: the corpus does not exist yet"
        epochs = {name: no_epochs if d["epochs"] is None else f"{d['epochs']:.2f} epochs" for name, d in data.items()}
        of_sources = ", ".join(f"{name} {short(d['tokens'])} tokens ({epochs[name]})" for name, d in data.items())
    evaluations = "the number of evaluations is not known before the examples are encoded"
    if "evaluations" in batch:
        evaluations = (
            f"{batch['evaluations']:,} times at most {short(batch['validation_tokens'])} tokens of the validation "
            f"split: {batch['validation_share']:.1%} of the time of the steps"
        )
    lines = {
        "model": _model(plan["model"]),
        "batch": _batch(batch),
        "memory": _memory(plan["memory"]),
        "of it": ", ".join(f"{part.replace('_', ' ')} {amount(size)}" for part, size in parts.items() if size),
        "data": of_sources,
        "eval": evaluations,
        "disk": _disk(plan["disk"]),
        "bound": _bound(plan["bound"]),
        "time": _time(plan["time"]),
    }
    return "\n".join(f"  {label:<7} {text}" for label, text in lines.items())


def _model(model: Figures) -> str:
    parameters, active, trained = (model[key] for key in ("parameters", "active_parameters", "trained_parameters"))
    more = f", {active:,} per token" if active != parameters else ""
    more += f", {trained:,} trained" if trained != parameters else ""
    repeated = model["repeated_flops_per_token"]
    again = f" and {repeated:,} repeated" if repeated else ""
    return f"{parameters:,} parameters{more}; {model['flops_per_token']:,} FLOPs per token{again}"


def _batch(batch: Figures) -> str:
    ranks = several(batch["ranks"], "rank")
    total = "" if batch["tokens"] is None else f", {batch['steps']:,} steps, {short(batch['tokens'])} tokens"
    law = batch["step_law_batch_size"]
    if law is not None:
        total += f" (the Step Law's batch, 0.58 x tokens^0.571, is {several(law, 'sample')})"
    more = ", float8" * batch["float8"] + ", CUDA graphs" * batch["cuda_graphs"]
    return (
        f"{batch['global_batch_size']} samples = {ranks} x {batch['micro_batch_size']} per micro-batch "
        f"x {batch['gradient_accumulation_steps']}; {batch['tokens_per_step']:,} tokens per step{total}; sharding "
        f"{batch['sharding']}, activation checkpointing {batch['activation_checkpointing']}{more}"
    )


def _memory(memory: Figures) -> str:
    peak = f"{amount(memory['peak_bytes'])} per rank at the peak (in: {memory['at']})"
    host = f"; {amount(memory['host_bytes_per_node'])} of CPU memory per node for checkpoints and what is offloaded"
    if "device" not in memory:
        return f"{peak}{host}; no GPU is named: whether it fits is not known"
    verdict = "fits" if memory["fits"] else "DOES NOT FIT"
    margin = f"{(FRAGMENTATION - 1):.0%} for fragmentation and {amount(RESERVED)} for CUDA and NCCL"
    return (
        f"{peak}, {amount(memory['needed_bytes'])} with {margin}: {verdict} the {memory['device']} "
        f"({amount(memory['device_bytes'])}){host}"
    )


def _disk(disk: Figures) -> str:
    each = f"{amount(disk['checkpoint_bytes'])} per checkpoint"
    if "checkpoints" not in disk:
        return each
    return (
        f"{each}, at most {disk['checkpoints']} at a time ({amount(disk['checkpoints_bytes'])}); exports "
        f"{amount(disk['exports_bytes'])}"
    )


def _bound(bound: Figures | None) -> str:
    if bound is None:
        return "not known: name a GPU, or its --copy-gb-per-second and --matrix-tflops"
    if "uncounted" in bound:
        return f"not counted with {bound['uncounted']}"
    total = sum(bound["seconds"].values())
    shares = ", ".join(f"{part} {seconds / total:.1%}" for part, seconds in bound["seconds"].items())
    mfu = "" if bound["mfu"] is None else f", an MFU of {bound['mfu']:.1%}"
    return (
        f"at most {bound['tokens_per_second']:,.0f} tokens/s per GPU{mfu}: at least {three_digits(total)} s per step "
        f"({shares}) at {bound['copies'] / 1e9:,.0f} GB/s and {bound['products'] / 1e12:,.0f} TFLOP/s, "
        f"{bound['source']}"
    )


def _time(time: Figures | None) -> str:
    if time is None:
        return (
            "not known: name a GPU and an MFU (--mfu), or tokens per second per GPU (--tokens-per-second); no run "
            "directory of these results has an MFU of this GPU"
        )
    rate = f"{time['tokens_per_second']:,.0f} tokens/s per GPU ({time['source']})"
    speed = f"{rate}, {three_digits(time['step_seconds'])} s per step"
    if "days" not in time:
        return speed
    cost = "" if time["cost"] is None else f", cost {time['cost']:,.2f}"
    more = "" if time.get("limit_minutes") else " (no time limit is given)"
    jobs = f"{several(time['jobs'], 'job')}{more}"
    return f"{speed}; {duration(time['days'] * 86400)} in {jobs}, {_hours(time['gpu_hours'])}{cost}"
