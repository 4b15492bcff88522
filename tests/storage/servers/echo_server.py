"""A server that refuses and echoes every request, as some proxies do."""

import json
import threading

from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer


class EchoServer(LoopbackServer):
    """A server that answers `status` with address and headers of the request; with "hang" it never answers."""

    def __init__(self, status):
        super().__init__(Handler)
        self.status = status
        self.seen: list[str] = []
        self.stopping = threading.Event()

    def close(self):
        self.stopping.set()
        super().close()


class Handler(LoopbackHandler):
    def answer(self):
        request_text = f"{self.command} {self.path} " + " ".join(
            f"{name}: {value}" for name, value in self.headers.items()
        )
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append(request_text)
        if self.server.status == "hang":
            self.server.stopping.wait(60)
            self.close_connection = True
            return
        body, kind = self.body_for(request_text)
        self.send(self.server.status, body, {"Content-Type": kind})

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815 -- http.server names them so

    def body_for(self, request_text):
        status = self.server.status
        if self.path.startswith("/api/2.0/"):
            return json.dumps({"error_code": "ECHO", "message": request_text}).encode(), "application/json"
        if "storage/v1" in self.path:
            return json.dumps({"error": {"code": status, "message": request_text}}).encode(), "application/json"
        text = request_text.replace("&", "&amp;").replace("<", "&lt;")
        return f"<Error><Code>Echo{status}</Code><Message>{text}</Message></Error>".encode(), "application/xml"
