"""A small Databricks workspace in memory: the Files API with one volume, uploads in parts, and the DBFS API."""

import itertools
import json
import socket
import threading
import time
from base64 import b64encode
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit

from tests.storage.servers.dbfs_calls import DBFS, DbfsCalls
from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer
from tests.storage.servers.part_calls import PARTS, PartCalls

FILES = "/api/2.0/fs/files"
DIRECTORIES = "/api/2.0/fs/directories"
PAGE = 3  # small, so that every listing has pages


class FilesApiServer(LoopbackServer):
    """A server of files below `volume`; requests need `token`."""

    def __init__(self, volume="/Volumes/main/default/vol", token="dapi0123456789abcdef"):
        super().__init__(Handler)
        self.volume, self.token = volume, token
        self.files: dict[str, bytes] = {}
        self.folders = {volume}
        self.lock = threading.Lock()
        self.log: list[tuple[str, str]] = []
        self.fail_with: list[int] = []  # statuses for the next requests
        self.refusal = 401, "UNAUTHENTICATED", "who are you?"
        self.login: tuple[str, str] | None = None  # ID and secret of a service principal that gets `token`
        self.retry_after: str | None = None  # header of those responses
        self.drop_reply_to: set[str] = set()  # paths whose next request is executed, but not answered
        self.refusals: dict[str, list[bool]] = {}  # which of the next requests for a path are answered with 500
        self.ranges = True
        self.takes_parts = False  # whether the workspace signs addresses for the parts of large files
        self.parts: dict[str, dict[int, bytes]] = {}
        self.dbfs: dict[str, bytes] = {}
        self.dbfs_folders = {"/"}
        self.handles: dict[int, tuple[str, list[bytes]]] = {}
        self.numbers = itertools.count(1)
        self.changed: dict[str, float] = {}


class Handler(DbfsCalls, PartCalls, LoopbackHandler):
    def handle_one(self):
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self.read_chunked()
        server = self.server
        with server.lock:
            server.log.append((self.command, path))
            if self.is_answered_early(path, query, body):
                return None
            if path.startswith(DBFS):
                return self.on_dbfs(path.removeprefix(DBFS), query, body)
            if self.command == "POST":
                return self.on_parts(path, query, body)
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

    def is_answered_early(self, path, query, body):
        """Return whether the request was answered already: with a planted fault, or without a login."""
        server = self.server
        if path.startswith("/.well-known") or (path.startswith("/oidc") and server.login):
            self.on_login(path)
        elif server.fail_with:
            self.fault(server.fail_with.pop(0), "PLANTED")
        elif path.startswith(PARTS):
            self.on_part(path, query, body)  # the signed address is the login
        elif self.headers.get("Authorization") != f"Bearer {server.token}":
            self.fault(*server.refusal)
        elif server.refusals.get(path) and server.refusals[path].pop(0):
            self.fault(500, "INTERNAL_ERROR")
        else:
            if path in server.drop_reply_to:
                server.drop_reply_to.remove(path)
                self.answer = self.hang_up
            return False
        return True

    def on_login(self, path):
        if path.startswith("/.well-known"):
            if not self.server.login:
                return self.fault(404, "NOT_FOUND")
            return self.say(oidc_endpoint=f"{self.server.url}/oidc", account_id="1", workspace_id="2")
        if "/.well-known/" in path:
            end = f"{self.server.url}/oidc/v1"
            return self.say(authorization_endpoint=f"{end}/authorize", token_endpoint=f"{end}/token")
        if self.headers.get("Authorization") != "Basic " + b64encode(":".join(self.server.login).encode()).decode():
            return self.fault(401, "UNAUTHENTICATED")
        return self.say(access_token=self.server.token, token_type="Bearer", expires_in=3600)

    def on_file(self, path, query, body):
        server = self.server
        if self.command == "PUT":
            if path.rpartition("/")[0] not in server.folders:
                return self.fault(404, "NOT_FOUND")
            if query["overwrite"] == ["false"] and path in server.files:
                return self.fault(409, "ALREADY_EXISTS")
            server.files[path] = body
            server.changed[path] = time.time()
            return self.answer(204)
        if path not in server.files:
            return self.fault(404, "NOT_FOUND")
        data = server.files[path]
        if self.command == "DELETE":
            del server.files[path]
            return self.answer(204)
        begin, end, status = 0, len(data), 200
        if self.headers.get("Range") and server.ranges:
            low, _, high = self.headers["Range"].removeprefix("bytes=").partition("-")
            begin, status = int(low), 206
            end = min(int(high) + 1 if high else len(data), len(data))
            if begin >= len(data):
                return self.fault(416, "INVALID_RANGE")
        when = formatdate(server.changed[path], usegmt=True)
        return self.answer(status, data[begin:end], {"Last-Modified": when})

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
        if self.command == "HEAD":
            return self.answer(200)
        if self.command == "DELETE":
            if any(name.startswith(below) for name in [*server.files, *server.folders]):
                return self.fault(400, "DIRECTORY_NOT_EMPTY")
            server.folders.discard(path)
            return self.answer(204)
        entries = [
            {
                "path": name,
                "is_directory": False,
                "file_size": len(data),
                "last_modified": int(server.changed[name] * 1000),
            }
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

    def fault(self, status, code, message="planted or real"):
        again = {"Retry-After": self.server.retry_after} if self.server.retry_after else {}
        self.answer(status, json.dumps({"error_code": code, "message": f"{message}: {code}"}).encode(), again)

    def hang_up(self, *_args):
        del self.answer
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def say(self, **found):
        self.answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def answer(self, status, body=b"", headers=None):
        self.send(status, body, headers)
