"""Tests of the egress guard itself: a guard that detects nothing would let every test pass."""

import multiprocessing
import socket
import subprocess
import sys

import pytest

from tests.egress import egress_guard

LEAVE = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=0.1)"


def leave():
    exec(LEAVE)


def udp(use):
    with socket.socket(type=socket.SOCK_DGRAM) as bare:
        use(bare)


@pytest.mark.parametrize(
    ("way", "event"),
    [
        (leave, "socket.getaddrinfo 192.0.2.1"),
        (lambda: socket.getaddrinfo("storage.googleapis.com", 443), "socket.getaddrinfo storage.googleapis.com"),
        (lambda: socket.gethostbyname("metadata"), "socket.gethostbyname metadata"),
        (lambda: udp(lambda it: it.connect(("198.51.100.7", 9))), "socket.connect 198.51.100.7"),
        (lambda: udp(lambda it: it.sendto(b"x", ("192.0.2.7", 9))), "socket.sendto 192.0.2.7"),
    ],
    ids=["connect", "name", "old-name", "udp", "datagram"],
)
def test_connections_beyond_the_machine_are_refused_and_recorded(way, event):
    with pytest.raises(ConnectionRefusedError, match="guard"):
        way()
    assert egress_guard.take() == [event]


def test_programs_that_a_test_starts_are_guarded_too():
    done = subprocess.run([sys.executable, "-c", LEAVE], check=False, capture_output=True, text=True, timeout=500)
    assert "ConnectionRefusedError: the tests' guard refuses socket.getaddrinfo 192.0.2.1" in done.stderr
    assert egress_guard.take() == ["socket.getaddrinfo 192.0.2.1"]


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes_are_guarded_too(method):
    child = multiprocessing.get_context(method).Process(target=leave)
    child.start()
    child.join(60)
    assert child.exitcode == 1
    assert egress_guard.take() == ["socket.getaddrinfo 192.0.2.1"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "127.8.9.1", "0.0.0.0", ""])
def test_loopback_is_local(host):
    assert egress_guard.is_local(host)


def test_the_host_name_of_this_machine_is_local():
    assert egress_guard.is_local(socket.gethostname())


@pytest.mark.parametrize("host", ["192.0.2.1", "8.8.8.8", "169.254.169.254", "example.com", "localhost.example.com"])
def test_other_hosts_are_not_local(host):
    assert not egress_guard.is_local(host)
