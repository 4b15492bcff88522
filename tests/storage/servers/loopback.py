"""The base of the HTTP servers in these tests: on loopback, in threads of this process, without a log."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LoopbackServer(ThreadingHTTPServer):
    """A server that runs from its creation until `close`; over https with a certificate."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, handler, certificate=None):
        super().__init__(("127.0.0.1", 0), handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.chain, certificate.key)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class LoopbackHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    default_headers: tuple[tuple[str, str], ...] = ()

    def log_message(self, *args):
        pass

    def send(self, status, body=b"", headers=None):
        """Send a response; only its headers to a HEAD request."""
        self.send_response(status)
        for name, value in {**dict(self.default_headers), **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
