"""A small server of Google's JSON API for objects that honours conditions, which the emulator ignores.

Uploads in one request or resumable, ranges, listings in pages, generations, `ifGenerationMatch`.
"""

import itertools
import json
import re
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer

PAGE = 5  # small, so that listings have pages


@dataclass(frozen=True)
class RecordedRequest:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str


class GcsJsonServer(LoopbackServer):
    """A server with one bucket, `bucket`; with `token` it requires a login, `keeps_conditions` may be turned off."""

    bucket = "bucket"

    def __init__(self, *, token=""):
        super().__init__(Handler)
        self.token, self.keeps_conditions = token, True
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.times: dict[str, str] = {}
        self.uploads: dict[str, tuple[str, dict[str, str], bytearray]] = {}
        self.generations = itertools.count(1_700_000_000_000_001)
        self.lock = threading.Lock()
        self.log: list[RecordedRequest] = []
        self.lose = 0  # number of next uploads that are executed, but not answered

    @property
    def options(self):
        """Storage options for `open_store`."""
        return {"endpoint_url": self.url, "token": "anon"}


class Handler(LoopbackHandler):
    default_headers = (("Content-Type", "application/json"),)

    def answer(self):
        server, parts = self.server, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query, login = dict(parse_qsl(parts.query)), self.headers.get("Authorization", "")
        with server.lock:
            server.log.append(RecordedRequest(self.command, unquote(parts.path), query, login))
            if server.token and login != f"Bearer {server.token}":
                return self.refuse(401, "Invalid Credentials")
            if parts.path == f"/upload/storage/v1/b/{server.bucket}/o":
                return self.upload(query, body)
            found = re.fullmatch(r"/(?:download/)?storage/v1/b/([^/]+)/o(?:/(.*))?", parts.path)
            if not found or found[1] != server.bucket:
                return self.refuse(404, "no such bucket")
            key = unquote(found[2] or "")
            return self.on_object(key, query) if key else self.list(query)

    do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 -- http.server names them so

    def upload(self, query, body):
        server = self.server
        if query["uploadType"] == "multipart":
            mark = re.search(r'boundary="(.+)"', self.headers["Content-Type"])[1].encode()
            _, about, rest = body.split(b"--" + mark, 2)
            data = re.split(rb"\r?\n\r?\n", rest, maxsplit=1)[1]
            data = data[: data.rindex(b"--" + mark)]
            name = json.loads(re.split(rb"\r?\n\r?\n", about, maxsplit=1)[1])["name"]
            return self.store(name, query, data[:-2] if data.endswith(b"\r\n") else data[:-1])
        if "upload_id" not in query:
            mark = str(len(server.uploads))
            server.uploads[mark] = (json.loads(body)["name"], query, bytearray())
            place = f"{server.url}/upload/storage/v1/b/{server.bucket}/o?uploadType=resumable&upload_id={mark}"
            return self.send(200, b"{}", {"Location": place})
        if self.command == "DELETE":
            del server.uploads[query["upload_id"]]
            return self.send(499, b"")  # Google's status of a cancelled upload
        name, conditions, data = server.uploads[query["upload_id"]]
        data += body
        total = self.headers["Content-Range"].rpartition("/")[2]
        if total == "*" or len(data) < int(total):
            return self.send(308, b"", {"Range": f"bytes=0-{len(data) - 1}"})
        return self.store(name, conditions, bytes(data))

    def store(self, name, query, data):
        server = self.server
        there = server.objects.get(name, (b"", 0))[1]
        required = query.get("ifGenerationMatch")
        if required is not None and server.keeps_conditions and int(required) != there:
            return self.refuse(412, "At least one of the pre-conditions you specified did not hold.")
        server.objects[name] = (data, next(server.generations))
        server.times[name] = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if server.lose:
            server.lose -= 1
            self.close_connection = True
            return None
        return self.send(200, json.dumps(self.described(name)).encode())

    def on_object(self, key, query):
        server = self.server
        if key not in server.objects:
            return self.refuse(404, "no such object")
        if self.command == "DELETE":
            del server.objects[key]
            return self.send(204, b"")
        data, generation = server.objects[key]
        if query.get("alt") != "media":
            return self.send(200, json.dumps(self.described(key)).encode())
        headers = {"X-Goog-Generation": str(generation)}
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, end = int(span[1]), min(int(span[2] or len(data)) + 1, len(data))
            if begin >= len(data):
                return self.refuse(416, "The requested range cannot be satisfied.")
            return self.send(206, data[begin:end], headers | {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})
        return self.send(200, data, headers)

    def list(self, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, folders = [], set()
        for name in sorted(name for name in self.server.objects if name.startswith(prefix)):
            rest = name.removeprefix(prefix)
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                items.append(self.described(name))
        begin = int(query.get("pageToken", "0"))
        page = {"kind": "storage#objects", "items": items[begin : begin + PAGE], "prefixes": sorted(folders)}
        if begin + PAGE < len(items):
            page["nextPageToken"] = str(begin + PAGE)
        return self.send(200, json.dumps(page).encode())

    def described(self, name):
        data, generation = self.server.objects[name]
        facts = {"name": name, "bucket": self.server.bucket, "size": str(len(data)), "generation": str(generation)}
        time = self.server.times[name]
        return facts | {"kind": "storage#object", "updated": time, "timeCreated": time, "etag": f"CL{generation}"}

    def refuse(self, status, message):
        return self.send(status, json.dumps({"error": {"code": status, "message": message}}).encode())
