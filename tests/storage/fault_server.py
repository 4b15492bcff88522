"""An HTTP server that answers every request with one planted fault, and counts them."""

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FaultServer(ThreadingHTTPServer):
    """`mode` is a status, "drop", "hang" or "cut" (headers promise more bytes than come)."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, mode, body=b"", times=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode, self.body, self.times, self.requests = mode, body, times, 0
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
        server = self.server
        server.requests += 1
        mode = server.mode
        if server.times is not None and server.requests > server.times:
            mode = 200
        if mode == "hang":
            server.stopping.wait(60)
            return
        if mode == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200 if mode == "cut" else mode)
        self.send_header("Content-Length", str(len(server.body) + (100 if mode == "cut" else 0)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(server.body)
        if mode == "cut":
            time.sleep(0.01)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815 -- http.server names them so
