"""The loop that a server runs on: of a thread of this process, or of a process of its own."""

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable

from tests.faultstore.server import Server


class ServerThread:
    """A server in a thread of this process; for what is read in this process alone.

    A fork copies the sockets of its connections, which then neither reset nor close: readers that are processes need a
    server that is one, too.
    """

    def __init__(self, server: Server, listening: socket.socket) -> None:
        self._server, self._listening = server, listening
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="faultstore", daemon=True)
        self._thread.start()
        self._ready.wait(60)

    def close(self) -> None:
        """End it, and every connection."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self._listening.close()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._server.serve(self._listening, self._stop)


def run_here(server: Server, listening: socket.socket, *, announce: Callable[[], None], until_eof: bool) -> None:
    """Serve in this thread until SIGTERM, SIGINT, or (when asked) the end of standard input."""

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        if until_eof:

            def look() -> None:
                if not os.read(0, 4096):
                    stop.set()

            loop.add_reader(0, look)
        announce()
        await server.serve(listening, stop)

    gc.freeze()
    asyncio.run(main())
    listening.close()
