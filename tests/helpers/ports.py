"""Ports for servers that start later: no connection of another process can take them in the meantime."""

import contextlib
import random
import socket

RANGE = range(15_000, 32_000)  # below those from which Linux takes the ports of outgoing connections


def free_ports(count, address="127.0.0.1"):
    """Return the numbers of different ports at which nothing listens."""
    chance, found = random.Random(), {}  # not the tests' seeded one: two processes would choose the same
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port, listener = chance.choice(RANGE), stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind((address, port))
                found[port] = listener
    return list(found)
