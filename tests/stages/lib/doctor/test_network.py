"""Addresses that lead to nobody, or to another host than was meant."""

import contextlib
import socket
import threading

import pytest

from stages.lib.doctor import network


@pytest.fixture
def address():
    """Where a host called node1 answers."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=network._answer, args=(server, "node1"), daemon=True).start()
        yield server.getsockname()


def test_a_host_that_answers_with_its_name_is_reached(address):
    assert network._connect(address, "node1") is None


def test_an_address_that_leads_to_another_host_is_told(address):
    assert network._connect(address, "node2") == "node1 answers there"


def test_the_address_is_that_of_the_interface_which_the_environment_names(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    assert network._own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(OSError, match="No such device"):
        network._own_address()
