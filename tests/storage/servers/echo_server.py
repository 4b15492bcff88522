"""A server that refuses and echoes every request, as some proxies do."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class EchoServer(ThreadingHTTPServer):
    """A server that answers `status` with address and headers of the request; with "hang" it never answers."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, status):
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.seen: list[str] = []
        self.stopping = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stopping.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

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
        self.send_response(self.server.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815 -- http.server names them so

    def body_for(self, request_text):
        status = self.server.status
        if self.path.startswith("/api/2.0/"):
            return json.dumps({"error_code": "ECHO", "message": request_text}).encode(), "application/json"
        if "storage/v1" in self.path:
            return json.dumps({"error": {"code": status, "message": request_text}}).encode(), "application/json"
        text = request_text.replace("&", "&amp;").replace("<", "&lt;")
        return f"<Error><Code>Echo{status}</Code><Message>{text}</Message></Error>".encode(), "application/xml"
