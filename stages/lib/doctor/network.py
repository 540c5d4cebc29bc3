"""Whether the hosts reach each other by the addresses that they give out: gloo, and the start of NCCL, need it.

Each host connects to the next one, the last to the first. So a firewall, a wrong interface, or a name that leads back
to the host itself is told with the two hosts between which it is, which a collective that hangs cannot do.
"""

import contextlib
import fcntl
import os
import socket
import struct
import threading

from stages.lib.doctor.findings import FAIL, OK, Finding, listed

NAME, SECONDS = "network", 30.0
CONNECT_SECONDS = 5.0
SIOCGIFADDR = 0x8915  # of Linux: the address of an interface


def look(meeting, _):
    """{"next": host, "address", "error"} on the first rank of each host, `error` None where all is well."""
    ring = sorted(meeting.leaders)
    if not meeting.leads or len(ring) < 2:
        return None
    after = ring[(ring.index(meeting.rank) + 1) % len(ring)]
    with contextlib.closing(socket.create_server(("", 0))) as server:
        threading.Thread(target=_answer, args=(server, meeting.host), daemon=True).start()
        meeting.say(f"address {meeting.rank}", [_own_address(), server.getsockname()[1]])
        address = meeting.hear(f"address {after}", SECONDS / 2)
        error = _connect(tuple(address), meeting.leaders[after])
        meeting.say(f"connected {meeting.rank}", True)
        before = ring[ring.index(meeting.rank) - 1]
        meeting.hear(f"connected {before}", SECONDS / 2)  # until then, the server stays
    return {"next": meeting.leaders[after], "address": ":".join(map(str, address)), "error": error}


def _own_address():
    """The address that gloo gives to the others: of the interface in the environment, else of the host's name."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            asked = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, asked)[20:24])
    return socket.gethostbyname(socket.gethostname())


def _answer(server, host):
    """Tell whoever connects which host this is."""
    with contextlib.suppress(OSError):  # closed: the check is over
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(host.encode())


def _connect(address, host):
    """Why another host is not reached at its address; None where it answers with its name."""
    try:
        with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
            found = connection.makefile("rb").read().decode(errors="replace")
    except OSError as error:
        return error.strerror or str(error)
    return None if found == host else f"{found or 'nobody'} answers there"


def judge(facts, _):
    """The finding; none where there is one host."""
    tried = [found for found in facts.values() if "next" in found]
    failed = [found for found in tried if found["error"]]
    if failed:
        said = listed(
            f"{one['host']} does not reach {one['next']} at {one['address']} ({one['error']})" for one in failed
        )
        text = (
            f"{said}: is it a firewall, or the wrong interface (GLOO_SOCKET_IFNAME in profiles/slurm/environment.sh)?"
        )
        return [Finding(FAIL, NAME, text)]
    if not tried:
        return []
    return [Finding(OK, NAME, f"{len(tried)} hosts in a ring, each reaches the next")]
