"""Whether the ranks can add up their numbers, rightly and fast: the all-reduce on which training stands."""

import statistics
import time

from stages.lib.doctor.findings import FAIL, OK, WARNING, Finding, hosts
from stages.lib.errors import UserError

NAME, SECONDS = "collectives", 60.0
NUMBERS = {"cuda": 64_000_000, "cpu": 4_000_000}  # float32: 256 MB, and 16 MB where nothing is fast
TURNS = {"cuda": 10, "cpu": 3}
SMALL_TURNS = 20
PERIOD = 251  # of the numbers: a prime, so that pieces in the wrong place do not look right
# Bytes a second between GPUs of several hosts. InfiniBand and EFA give ten times that, a plain network less.
SLOW = 5e9


def look(meeting, _):
    """Join as a training does; then whether sums are right, bytes a second on the bus, and seconds of a small sum."""
    if meeting.missing:
        raise UserError("not tried, since ranks are missing")
    from stages.lib.distributed import collectives

    meeting.doing = "joining the process group"
    with collectives.ranks() as device:
        meeting.doing = "the first sum"
        right = _is_right(device, 1)
        meeting.doing = "a large sum"
        right = _is_right(device, NUMBERS[device.type]) and right
        found = {"right": right, "device": device.type, "bytes": 4 * NUMBERS[device.type]}
        return found | {"bus": _bus_speed(device), "latency": _latency(device)}


def _is_right(device, count):
    """Whether the sum over all ranks of numbers that differ from rank to rank is what arithmetic says; exactly."""
    import torch
    import torch.distributed as dist

    size, base = dist.get_world_size(), torch.arange(count, device=device).remainder_(PERIOD).float()
    numbers = base + (dist.get_rank() + 1)
    dist.all_reduce(numbers)
    return bool(torch.equal(numbers, base * size + size * (size + 1) // 2))


def _bus_speed(device):
    """Bytes a second that pass each rank, as NCCL's own tests count them: bytes / seconds x 2 (n - 1) / n."""
    import torch
    import torch.distributed as dist

    numbers = torch.zeros(NUMBERS[device.type], device=device)
    dist.barrier()
    seconds = statistics.median(_seconds(device, numbers) for _ in range(TURNS[device.type]))
    size = dist.get_world_size()
    return numbers.nbytes / seconds * 2 * (size - 1) / size


def _latency(device):
    import torch

    number = torch.zeros(1, device=device)
    return statistics.median(_seconds(device, number) for _ in range(SMALL_TURNS))


def _seconds(device, numbers):
    import torch
    import torch.distributed as dist

    begun = time.perf_counter()
    dist.all_reduce(numbers)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def judge(facts, _):
    """The finding."""
    some = next(iter(facts.values()))
    wrong = hosts(facts, lambda found: not found["right"])
    backend = {"cuda": "NCCL", "cpu": "gloo"}[some["device"]]
    if wrong:
        text = f"an all-reduce by {backend} gave a wrong sum on {wrong}: leave hosts out until it is right"
        return [Finding(FAIL, NAME, text)]
    if len(facts) == 1:
        return [Finding(OK, NAME, f"{backend} starts; one rank has nobody to speak to (workflow/launch starts more)")]
    slowest = min(found["bus"] for found in facts.values())
    latency = max(found["latency"] for found in facts.values())
    text = f"all-reduce of {some['bytes'] / 1e6:.0f} MB by {backend}: {slowest / 1e9:.1f} GB/s on the bus"
    text += f", {latency * 1e6:,.0f} us for one number"
    several = len({found["host"] for found in facts.values()}) > 1
    if several and some["device"] == "cuda" and slowest < SLOW:
        text += "; is this a plain network? NCCL_DEBUG=INFO says what it uses, profiles/slurm/environment.sh sets it"
        return [Finding(WARNING, NAME, text)]
    return [Finding(OK, NAME, text)]
