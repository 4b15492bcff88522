"""A store that a test can block: an S3 server in this process that serves the files of a folder."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

FORBIDDEN = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
)


class S3Server(ThreadingHTTPServer):
    """A server whose bucket `b` is the folder; read `s3://b/<path>` with `options`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.forbidden = "(?!)"
        """Pattern of keys whose requests are refused."""
        self.held = "(?!)"
        """Pattern of keys whose replies wait for `release`."""
        self.release = threading.Event()
        self.requested_keys: list[str] = []
        """Keys of all requests so far."""
        self.options = {
            "endpoint_url": f"http://127.0.0.1:{self.server_address[1]}",
            "key": "AKIDTEST",
            "secret": "SECRETTESTSECRET",
        }
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> "S3Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """A handler of GET and HEAD of objects; listings are empty."""

    protocol_version = "HTTP/1.1"
    server: S3Server

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def answer(self) -> None:
        """Send the object, or the requested range of it."""
        server = self.server
        key = unquote(urlsplit(self.path).path).removeprefix("/b").lstrip("/")
        server.requested_keys.append(key)
        if re.search(server.forbidden, key):
            return self.send(403, FORBIDDEN)
        if re.search(server.held, key):
            server.release.wait(60)
        path = server.folder / key
        if not path.is_file():
            return self.send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data, status = path.read_bytes(), 200
        if byte_range := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, end, status = int(byte_range[1]), int(byte_range[2] or len(data)) + 1, 206
            if begin >= len(data):
                return self.send(416, b"<Error><Code>InvalidRange</Code></Error>")
            data = data[begin:end]
        return self.send(status, data)

    do_GET = do_HEAD = answer  # noqa: N815 -- http.server names them so

    def send(self, status: int, body: bytes) -> None:
        """Send a complete reply; the client may be dead."""
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"e"')
            self.send_header("Last-Modified", "Sat, 01 Jan 2000 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True
