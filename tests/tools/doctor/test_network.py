"""Connections to unreachable addresses and to the wrong host."""

import contextlib
import socket
import threading

import pytest

from tools.doctor import network


@pytest.fixture
def address():
    """The address at which a host named node1 answers."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=network._serve_name, args=(server, "node1"), daemon=True).start()
        yield server.getsockname()


def test_host_that_answers_with_its_name_is_reached(address):
    assert network._connect(address, "node1") is None


def test_address_of_another_host_is_reported(address):
    assert network._connect(address, "node2") == "node1 answers there"


def test_address_is_that_of_the_interface_in_the_environment(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    assert network._own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(OSError, match="No such device"):
        network._own_address()
