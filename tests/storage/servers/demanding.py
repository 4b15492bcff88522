"""Servers in front of others: one that refuses requests which lack something, and a proxy for tunnels."""

import base64
import http.client
import select
import socket
from urllib.parse import urlsplit

from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer

REFUSAL = "<Error><Code>AccessDenied</Code><Message>{}</Message></Error>"
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


class DemandingServer(LoopbackServer):
    """Forwards requests to a server if `demand(method, path, headers, body)` returns None; else 403 with its text."""

    def __init__(self, backend, demand, certificate=None):
        super().__init__(DemandingHandler, certificate)
        self.backend, self.demand = urlsplit(backend), demand
        self.refused: list[str] = []
        self.forwarded: list[tuple[str, str, dict[str, str]]] = []


class DemandingHandler(LoopbackHandler):
    def forward(self):
        body = self.read_body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        refusal = self.server.demand(self.command, self.path, headers, body)
        if refusal is not None:
            self.server.refused.append(f"{self.command} {self.path}: {refusal}")
            text = REFUSAL.format(refusal)
            text = (
                f"<ErrorResponse>{text}</ErrorResponse>" if self.command == "POST" and self.path == "/" else text
            )  # STS
            return self.send(403, text.encode(), {"Content-Type": "application/xml"})
        self.server.forwarded.append((self.command, self.path, headers))
        connection = http.client.HTTPConnection(self.server.backend.hostname, self.server.backend.port, timeout=60)
        try:
            kept = {name: value for name, value in headers.items() if name not in _HOP}
            connection.request(self.command, self.path, body, kept)
            reply = connection.getresponse()
            answer, given = reply.read(), {n: v for n, v in reply.getheaders() if n.lower() not in _HOP}
            if self.command == "HEAD":
                self.send_response(reply.status)
                for name, value in {**given, "Content-Length": reply.getheader("Content-Length", "0")}.items():
                    self.send_header(name, value)
                return self.end_headers()
            return self.send(reply.status, answer, given)
        finally:
            connection.close()

    def read_body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 -- http.server names them so


class TunnelServer(LoopbackServer):
    """An HTTP proxy with CONNECT, and for plain requests; with `login` it demands "user:password"."""

    def __init__(self, login=""):
        super().__init__(TunnelHandler)
        self.login = login
        self.targets: list[str] = []
        self.refused = 0


class TunnelHandler(LoopbackHandler):
    def connect(self):
        expected = "Basic " + base64.b64encode(self.server.login.encode()).decode()
        if self.server.login and self.headers.get("Proxy-Authorization") != expected:
            self.server.refused += 1
            return self.send(407, b"", {"Proxy-Authenticate": 'Basic realm="company"'})
        self.server.targets.append(self.path)
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as other:
            self.send_response(200, "Connection established")
            self.end_headers()
            self.close_connection = True
            self.pump(other)
        return None

    def pump(self, other):
        ends = [self.connection, other]
        while True:
            ready, _, _ = select.select(ends, [], [], 60)
            if not ready:
                return
            for end in ready:
                data = end.recv(1 << 16)
                if not data:
                    return
                (other if end is self.connection else self.connection).sendall(data)

    do_CONNECT = connect  # noqa: N815
