"""The checks between hosts: clocks that agree, addresses that can be reached, and all-reduces."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import socket
import statistics
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

from stages.lib.errors import UserError
from tools.doctor.runner import FAIL, OK, WARNING, Check, Finding, Rendezvous, Reports, host_names, join_names

if TYPE_CHECKING:
    import torch

CLOCK_SECONDS, CLOCK_ROUNDS = 20.0, 5
WARNING_SECONDS, FAIL_SECONDS = 1.0, 60.0
ADDRESS_SECONDS, CONNECT_SECONDS = 30.0, 5.0
SIOCGIFADDR = 0x8915  # Linux: the address of an interface
NUM_VALUES = {"cuda": 64_000_000, "cpu": 4_000_000}  # float32: 256 MB and 16 MB
NUM_ROUNDS = {"cuda": 10, "cpu": 3}
NUM_LATENCY_ROUNDS = 20
PERIOD = 251  # of the values: a prime, so that a misplaced segment gives a wrong sum
# Bytes per second between GPUs of several hosts. InfiniBand and EFA reach ten times that, plain Ethernet less.
SLOW = 5e9


def collect_offsets(rendezvous: Rendezvous, _: argparse.Namespace) -> dict[str, Any] | None:
    """Return {"offsets": {host: (seconds ahead of the first rank's clock, uncertainty in seconds)}} on the first rank.

    The first rank queries each host in turn, and uses the answer with the shortest round trip.
    """
    if rendezvous.rank:
        for number in range(CLOCK_ROUNDS if rendezvous.is_leader else 0):
            rendezvous.get(f"clock request {rendezvous.rank} {number}", CLOCK_SECONDS)
            rendezvous.set(f"clock answer {rendezvous.rank} {number}", time.time())
        return None
    offsets = {}
    for rank, host in rendezvous.leaders.items():
        if rank:
            answers = []
            for number in range(CLOCK_ROUNDS):
                begin = time.time()
                rendezvous.set(f"clock request {rank} {number}", True)
                remote = rendezvous.get(f"clock answer {rank} {number}", CLOCK_SECONDS)
                end = time.time()
                answers.append(((end - begin) / 2, remote - (begin + end) / 2))
            uncertainty, offset = min(answers)
            offsets[host] = offset, uncertainty
    return {"offsets": offsets}


def evaluate_offsets(reports: Reports, _: argparse.Namespace) -> Finding:
    """Compare the hosts' clocks: leases, deadlines and the order of events rely on them."""
    offsets = reports[0]["offsets"]
    if not offsets:
        return OK, "one host: nothing to compare"
    host, (offset, uncertainty) = max(offsets.items(), key=lambda item: abs(item[1][0]))
    if abs(offset) <= WARNING_SECONDS:
        return OK, f"{len(offsets) + 1} hosts within {abs(offset) + uncertainty:.3f} s"
    text = f"{host} is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} {reports[0]['host']}"
    level = FAIL if abs(offset) > FAIL_SECONDS else WARNING
    return level, f"{text}: set the clocks (chronyc tracking, timedatectl)"


def collect_addresses(rendezvous: Rendezvous, _: argparse.Namespace) -> dict[str, Any] | None:
    """Return {"next": host, "address", "error": text or None} on the first rank of each host.

    Each host connects to the next one, the last to the first. So a firewall, a wrong interface, or a name that resolves
    to the host itself is reported with the two hosts concerned, which a hanging collective cannot do.
    """
    ring = sorted(rendezvous.leaders)
    if not rendezvous.is_leader or len(ring) < 2:
        return None
    following = ring[(ring.index(rendezvous.rank) + 1) % len(ring)]
    with contextlib.closing(socket.create_server(("", 0))) as server:
        threading.Thread(target=serve_name, args=(server, rendezvous.host), daemon=True).start()
        rendezvous.set(f"address {rendezvous.rank}", [own_address(), server.getsockname()[1]])
        address = rendezvous.get(f"address {following}", ADDRESS_SECONDS / 2)
        error = reach(tuple(address), rendezvous.leaders[following])
        rendezvous.set(f"connected {rendezvous.rank}", True)
        previous = ring[ring.index(rendezvous.rank) - 1]
        rendezvous.get(f"connected {previous}", ADDRESS_SECONDS / 2)  # keep the server until then
    return {"next": rendezvous.leaders[following], "address": ":".join(map(str, address)), "error": error}


def own_address() -> str:
    """Return the address that gloo publishes: of the interface in the environment, else of the host name."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
    return socket.gethostbyname(socket.gethostname())


def serve_name(server: socket.socket, host: str) -> None:
    """Send this host's name on every connection."""
    with contextlib.suppress(OSError):  # closed: the check is over
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(host.encode())


def reach(address: tuple[str, int], host: str) -> str | None:
    """Return why a host cannot be reached at its address; None if it answers with its name."""
    try:
        with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
            name = connection.makefile("rb").read().decode(errors="replace")
    except OSError as error:
        return error.strerror or str(error)
    return None if name == host else f"{name or 'no host'} answers there"


def evaluate_addresses(reports: Reports, _: argparse.Namespace) -> Finding | None:
    """Look for hosts that cannot connect to the address of the next: gloo, and the start of NCCL, need it."""
    tried = [report for report in reports.values() if "next" in report]
    failed = [report for report in tried if report["error"]]
    if failed:
        text = join_names(
            f"{one['host']} cannot connect to {one['next']} at {one['address']} ({one['error']})" for one in failed
        )
        return FAIL, (
            f"{text}: check for a firewall or a wrong interface (GLOO_SOCKET_IFNAME in profiles/slurm/environment.sh)"
        )
    return (OK, f"each of {len(tried)} hosts can connect to the next") if tried else None


def collect_sums(rendezvous: Rendezvous, _: argparse.Namespace) -> dict[str, Any]:
    """Initialize the process group as a training does, and measure all-reduces.

    Returns "right" (sums are correct), "bus" (bytes per second of the bus, as nccl-tests define it: bytes / seconds
    x 2 (n - 1) / n) and "latency" (seconds of an all-reduce of one number).
    """
    if rendezvous.missing:
        raise UserError("skipped: ranks are missing")
    import torch
    import torch.distributed as dist

    from stages.lib.distributed.process_group import process_group

    def is_right(count: int) -> bool:
        # values that differ on each rank, and have an exact sum
        base = torch.arange(count, device=device).remainder_(PERIOD).float()
        values = base + (dist.get_rank() + 1)
        dist.all_reduce(values)
        return bool(torch.equal(values, base * size + size * (size + 1) // 2))

    def seconds(values: torch.Tensor) -> float:
        begin = time.perf_counter()
        dist.all_reduce(values)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    rendezvous.activity = "process group initialization"
    with process_group() as device:
        size = dist.get_world_size()
        rendezvous.activity = "the first all-reduce"
        right = is_right(1)
        rendezvous.activity = "a large all-reduce"
        right = is_right(NUM_VALUES[device.type]) and right
        values = torch.zeros(NUM_VALUES[device.type], device=device)
        dist.barrier()
        median = statistics.median(seconds(values) for _ in range(NUM_ROUNDS[device.type]))
        latency = statistics.median(seconds(values[:1]) for _ in range(NUM_LATENCY_ROUNDS))
    bus = values.nbytes / median * 2 * (size - 1) / size
    return {"right": right, "device": device.type, "bytes": values.nbytes, "bus": bus, "latency": latency}


def evaluate_sums(reports: Reports, _: argparse.Namespace) -> Finding:
    """Look for wrong and slow all-reduces, on which training depends."""
    some = next(iter(reports.values()))
    backend = {"cuda": "NCCL", "cpu": "gloo"}[some["device"]]
    if wrong := host_names(reports, lambda report: not report["right"]):
        return FAIL, f"an all-reduce with {backend} returned a wrong sum on {wrong}: exclude hosts until it is correct"
    if len(reports) == 1:
        return OK, f"{backend} starts; one rank has nothing to measure (workflow/launch starts more)"
    slowest = min(report["bus"] for report in reports.values())
    latency = max(report["latency"] for report in reports.values())
    text = f"all-reduce of {some['bytes'] / 1e6:.0f} MB with {backend}: bus bandwidth {slowest / 1e9:.1f} GB/s"
    text += f", latency {latency * 1e6:,.0f} us"
    num_hosts = len({report["host"] for report in reports.values()})
    if num_hosts > 1 and some["device"] == "cuda" and slowest < SLOW:
        text += f", less than {SLOW / 1e9:.0f} GB/s: NCCL_DEBUG=INFO shows the network that NCCL uses, and "
        return WARNING, f"{text}profiles/slurm/environment.sh configures it"
    return OK, text


CLOCKS = Check(CLOCK_SECONDS, collect_offsets, {"clocks": evaluate_offsets})
NETWORK = Check(ADDRESS_SECONDS, collect_addresses, {"network": evaluate_addresses})
COLLECTIVES = Check(60.0, collect_sums, {"collectives": evaluate_sums})
