"""A small server that speaks the part of the Databricks Files API that volumes need; one volume, kept in memory."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

FILES = "/api/2.0/fs/files"
DIRECTORIES = "/api/2.0/fs/directories"
PAGE = 3  # small, so that every listing has pages


class FilesApiServer(ThreadingHTTPServer):
    """Files below `volume`; requests need `token`."""

    request_queue_size = 256
    daemon_threads = True

    def __init__(self, volume="/Volumes/main/default/vol", token="dapi0123456789abcdef"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.volume, self.token = volume, token
        self.files: dict[str, bytes] = {}
        self.folders = {volume}
        self.lock = threading.Lock()
        self.log: list[tuple[str, str]] = []
        self.fail_with: list[int] = []  # statuses for the next requests
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def handle_one(self):
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self.read_chunked()
        server = self.server
        with server.lock:
            server.log.append((self.command, path))
            if path.startswith("/.well-known"):
                return self.fault(404, "NOT_FOUND")
            if server.fail_with:
                return self.fault(server.fail_with.pop(0), "PLANTED")
            if self.headers.get("Authorization") != f"Bearer {server.token}":
                return self.fault(401, "UNAUTHENTICATED")
            if path.startswith(FILES):
                return self.on_file(path.removeprefix(FILES), query, body)
            if path.startswith(DIRECTORIES):
                return self.on_directory(path.removeprefix(DIRECTORIES), query)
            return self.fault(404, "NOT_FOUND")

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one  # noqa: N815 -- http.server names them so

    def read_chunked(self):
        data = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def on_file(self, path, query, body):
        server = self.server
        if self.command == "PUT":
            if path.rpartition("/")[0] not in server.folders:
                return self.fault(404, "NOT_FOUND")
            if query["overwrite"] == ["false"] and path in server.files:
                return self.fault(409, "ALREADY_EXISTS")
            server.files[path] = body
            return self.answer(204)
        if path not in server.files:
            return self.fault(404, "NOT_FOUND")
        data = server.files[path]
        if self.command == "DELETE":
            del server.files[path]
            return self.answer(204)
        begin, end, status = 0, len(data), 200
        if self.headers.get("Range"):
            low, _, high = self.headers["Range"].removeprefix("bytes=").partition("-")
            begin, status = int(low), 206
            end = min(int(high) + 1 if high else len(data), len(data))
            if begin >= len(data):
                return self.fault(416, "INVALID_RANGE")
        return self.answer(status, data[begin:end], {"Last-Modified": f"t{hash(data)}"})

    def on_directory(self, path, query):
        server, path = self.server, path.rstrip("/")
        if self.command == "PUT":
            if not path.startswith(server.volume):
                return self.fault(404, "NOT_FOUND")
            parts = path.split("/")
            server.folders |= {"/".join(parts[:n]) for n in range(5, len(parts) + 1)}
            return self.answer(204)
        if path not in server.folders:
            return self.fault(404, "NOT_FOUND")
        below = f"{path}/"
        entries = [
            {"path": name, "is_directory": False, "file_size": len(data), "last_modified": 1}
            for name, data in server.files.items()
            if name.rpartition("/")[0] == path
        ] + [
            {"path": name, "is_directory": True}
            for name in server.folders
            if name.startswith(below) and "/" not in name.removeprefix(below)
        ]
        entries.sort(key=lambda entry: entry["path"])
        start = int(query.get("page_token", ["0"])[0])
        page = {"contents": entries[start : start + PAGE]}
        if start + PAGE < len(entries):
            page["next_page_token"] = str(start + PAGE)
        return self.answer(200, json.dumps(page).encode(), {"Content-Type": "application/json"})

    def fault(self, status, code):
        self.answer(status, json.dumps({"error_code": code, "message": f"planted or real: {code}"}).encode())

    def answer(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
