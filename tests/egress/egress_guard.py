"""A guard that records and refuses connections and name look-ups beyond loopback.

It sees the sockets of Python, of the tests and, by sitecustomize.py beside this file, of the Python programs that they
start with their environment. JVMs, gRPC and Rust clients, and `torch.distributed` pass by.
"""

import os
import sys

LOG = "SMALTI_TESTS_EGRESS"
"""The environment's name for the file that records what was tried, by whichever process."""
CONNECTIONS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
LOOK_UPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
WATCHED = CONNECTIONS | LOOK_UPS

_own: set[str] = set()


def watch() -> None:
    """Watch this process from now on, and the children that it forks, for good: Python has no way to stop."""
    sys.addaudithook(_look)


def take() -> list[str]:
    """Return the attempts of all processes since the last call."""
    path = os.environ[LOG]
    with open(path, "r+", encoding="utf-8") as log:
        seen = log.read().splitlines()
        if seen:
            log.truncate(0)
    return seen


def _look(event, args, watched=WATCHED):  # an argument: at exit the interpreter clears globals
    if event not in watched:
        return
    host = args[0] if event in LOOK_UPS else args[1]
    if event in CONNECTIONS:
        host = host[0] if isinstance(host, tuple) else None  # a path: a Unix socket
    host = host.decode(errors="replace") if isinstance(host, bytes) else host
    if host is None or isinstance(host, int) or is_local(host):  # a number: a netlink socket
        return
    if LOG in os.environ:
        log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{event} {host}\n".encode())
        os.close(log)
    raise ConnectionRefusedError(f"the tests' guard refuses {event} {host}: only loopback is allowed")


def is_local(host: str) -> bool:
    """Return whether the host is this machine."""
    import ipaddress
    import socket

    if host in {"", "localhost", socket.gethostname()}:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or str(address) in _own_addresses()


def _own_addresses():
    """Return the addresses of this machine's host name, which Spark and torch use among their processes."""
    import contextlib
    import socket

    if not _own:
        _own.add("127.0.0.1")
        with contextlib.suppress(OSError):  # a host name that this machine cannot resolve
            _own.update(str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None))
    return _own
