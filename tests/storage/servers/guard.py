"""Nothing may leave this machine: a connection or a look-up of a name outside loopback is recorded and refused.

It sees Python's own sockets, which is all that the stores' libraries use here (gRPC and Rust clients would pass by).
"""

import ipaddress
import socket
import sys

_seen: list[str] = []
_active = [False]
_installed: list[bool] = []


def start() -> None:
    """Watch from now on."""
    if not _installed:
        sys.addaudithook(_watch)  # for good: Python has no way to remove one
        _installed.append(True)
    _seen.clear()
    _active[0] = True


def stop() -> list[str]:
    """What was tried since `start`."""
    _active[0] = False
    return list(_seen)


def _watch(event, args):
    if not _active[0]:
        return
    if event in {"socket.connect", "socket.sendto"}:
        address = args[1]
        host = address[0] if isinstance(address, tuple) else None  # a path: a socket of this machine
    elif event in {"socket.getaddrinfo", "socket.gethostbyname"}:
        host = args[0]
    else:
        return
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if not is_local(host):
        _seen.append(f"{event} {host}")
        raise ConnectionRefusedError(f"the tests' guard refuses {event} {host}: only loopback is allowed")


def is_local(host) -> bool:
    """Whether the host is this machine."""
    if host in {None, "", "localhost", socket.gethostname()}:
        return True
    try:
        return ipaddress.ip_address(str(host).split("%")[0]).is_loopback
    except ValueError:
        return False
