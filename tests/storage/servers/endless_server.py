"""A server whose answers do not end, and which counts what it has sent."""

import threading

from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer

PATTERN = b"0123456789abcdef"
LIMIT = 512 << 20
"""Bytes after which the server gives up, so that a test that fails takes no memory."""


class EndlessServer(LoopbackServer):
    """A server with one object without an end, `PATTERN` again and again, at every address.

    With `ignores_ranges` it sends all of it to a request for a range; else the range and more after it.
    With `trickles`, it sends a byte now and then.
    """

    def __init__(self, *, ignores_ranges, trickles=False):
        super().__init__(Handler)
        self.ignores_ranges, self.trickles = ignores_ranges, trickles
        self.sent = 0


class Handler(LoopbackHandler):
    def answer(self):
        if "/.well-known/" in self.path:  # where Databricks' client looks for logins
            self.send(404)
            return
        text = self.headers.get("Range") or self.headers.get("x-ms-range")
        begin = 0
        if text is None or self.server.ignores_ranges:
            self.send_response(200)
        else:
            begin, end = map(int, text.removeprefix("bytes=").split("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end}/{1 << 40}")
        for name in ("ETag", "x-goog-generation"):
            self.send_header(name, "1")
        if self.command == "HEAD" and self.server.trickles:
            self.send_header("Content-Length", str(1 << 20))  # as stores do; some clients ask for it first
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        block = (PATTERN * 4097)[begin % 16 : (begin % 16) + (1 if self.server.trickles else 1 << 16)]
        try:
            while self.server.sent < LIMIT:
                self.wfile.write(block)
                self.server.sent += len(block)
                if self.server.trickles:
                    threading.Event().wait(0.02)
        except OSError:
            self.close_connection = True

    do_GET = do_HEAD = answer  # noqa: N815 -- http.server names them so
