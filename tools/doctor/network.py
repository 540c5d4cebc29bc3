"""Check that hosts can connect to the addresses that they publish: gloo, and the start of NCCL, need it.

Each host connects to the next one, the last to the first. So a firewall, a wrong interface, or a name that resolves to
the host itself is reported with the two hosts concerned, which a hanging collective cannot do.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import socket
import struct
import threading
from typing import Any

from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import FAIL, OK, Reports, Result, join_names

NAME, TIMEOUT_SECONDS = "network", 30.0
CONNECT_SECONDS = 5.0
SIOCGIFADDR = 0x8915  # Linux: the address of an interface


def collect(rendezvous: Rendezvous, _: argparse.Namespace) -> dict[str, Any] | None:
    """Return {"next": host, "address", "error": text or None} on the first rank of each host."""
    ring = sorted(rendezvous.leaders)
    if not rendezvous.is_leader or len(ring) < 2:
        return None
    following = ring[(ring.index(rendezvous.rank) + 1) % len(ring)]
    with contextlib.closing(socket.create_server(("", 0))) as server:
        threading.Thread(target=_serve_name, args=(server, rendezvous.host), daemon=True).start()
        rendezvous.set(f"address {rendezvous.rank}", [_own_address(), server.getsockname()[1]])
        address = rendezvous.get(f"address {following}", TIMEOUT_SECONDS / 2)
        error = _connect(tuple(address), rendezvous.leaders[following])
        rendezvous.set(f"connected {rendezvous.rank}", True)
        previous = ring[ring.index(rendezvous.rank) - 1]
        rendezvous.get(f"connected {previous}", TIMEOUT_SECONDS / 2)  # keep the server until then
    return {"next": rendezvous.leaders[following], "address": ":".join(map(str, address)), "error": error}


def _own_address() -> str:
    """Return the address that gloo publishes: of the interface in the environment, else of the host name."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
    return socket.gethostbyname(socket.gethostname())


def _serve_name(server: socket.socket, host: str) -> None:
    """Send this host's name on every connection."""
    with contextlib.suppress(OSError):  # closed: the check is over
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(host.encode())


def _connect(address: tuple[str, int], host: str) -> str | None:
    """Return why a host cannot be reached at its address; None if it answers with its name."""
    try:
        with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
            name = connection.makefile("rb").read().decode(errors="replace")
    except OSError as error:
        return error.strerror or str(error)
    return None if name == host else f"{name or 'no host'} answers there"


def evaluate(reports: Reports, _: argparse.Namespace) -> list[Result]:
    """Return one result; none for a single host."""
    tried = [report for report in reports.values() if "next" in report]
    failed = [report for report in tried if report["error"]]
    if failed:
        text = join_names(
            f"{one['host']} cannot connect to {one['next']} at {one['address']} ({one['error']})" for one in failed
        )
        text += ": check for a firewall or a wrong interface (GLOO_SOCKET_IFNAME in profiles/slurm/environment.sh)"
        return [Result(FAIL, NAME, text)]
    if not tried:
        return []
    return [Result(OK, NAME, f"each of {len(tried)} hosts can connect to the next")]
