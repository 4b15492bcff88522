"""What the link gives to plain clients: every object of a set, thrown away, or written and brought to the disk."""

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, urlsplit

from benchmarks.link.place import Place
from benchmarks.peers.interface import Peer

_CONNECTIONS = 16
_PIECE = 1 << 20


class PlainLink(Peer):
    """Sixteen connections, each asking for the next object when one is whole; the bytes are thrown away."""

    def read_all(self, place: Place, keys: list[str]) -> int:
        """Bytes of the objects."""
        own, opened = threading.local(), ExitStack()
        bucket, host = place.url.removeprefix("s3://"), urlsplit(place.endpoint)

        def read(key: str) -> int:
            if not hasattr(own, "connected"):
                connected = socket.create_connection((host.hostname or "", host.port or 80))
                own.connected, own.buffer = opened.enter_context(connected), memoryview(bytearray(_PIECE))
            keep, finish = self._keep(place.cache, key)
            size = _read_reply(own.connected, own.buffer, f"/{bucket}/{quote(key)}", keep)
            finish()
            return size

        with opened, ThreadPoolExecutor(_CONNECTIONS) as pool:
            return sum(pool.map(read, keys))

    def _keep(self, cache: Path, key: str) -> tuple[Callable[[memoryview], object], Callable[[], None]]:
        return (lambda piece: None), (lambda: None)


class LinkToDisk(PlainLink):
    """The same, and every object is a file that is on the disk."""

    def _keep(self, cache: Path, key: str) -> tuple[Callable[[memoryview], object], Callable[[], None]]:
        path = cache / key
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb", buffering=0)

        def finish() -> None:
            os.fsync(file.fileno())
            file.close()

        return file.write, finish


def _read_reply(connected: socket.socket, buffer: memoryview, target: str, keep: Callable[[memoryview], object]) -> int:
    connected.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        count = connected.recv_into(buffer)
        if not count:
            raise ConnectionError(f"{target}: no reply")
        head += bytes(buffer[:count])
    head, _, rest = head.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"{target}: {head[:80]!r}")
    (size,) = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    keep(memoryview(rest))
    left = size - len(rest)
    while left:
        count = connected.recv_into(buffer, min(left, _PIECE))
        if not count:
            raise ConnectionError(f"{target}: {left} bytes are missing")
        keep(buffer[:count])
        left -= count
    return size
