"""A small web server: files with ranges, and the endpoints of the Hugging Face Hub."""

import json
from urllib.parse import parse_qs, unquote, urlsplit

from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer


class WebServer(LoopbackServer):
    """A server of files by path; `ranges` and `heads` turn off what some servers lack, `token` requires a login."""

    def __init__(self, files, *, token=None):
        super().__init__(Handler)
        self.files, self.token = dict(files), token
        self.ranges = self.heads = True
        self.log: list[tuple[str, str]] = []
        self.redirects: dict[str, str] = {}
        self.headers: list[dict[str, str]] = []


class Handler(LoopbackHandler):
    default_headers = (("ETag", '"1"'),)

    def answer(self):
        server, path = self.server, unquote(urlsplit(self.path).path)
        server.log.append((self.command, path))
        server.headers.append({name.lower(): value for name, value in self.headers.items()})
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            return self.send(401, b"who are you?")
        if path in server.redirects:
            return self.send(302, b"", {"Location": server.redirects[path]})
        if self.command == "HEAD" and not server.heads:
            return self.send(405, b"")
        if path.startswith("/api/"):
            return self.tree(path)
        if self.command == "PUT":
            server.files[path] = self.rfile.read(int(self.headers["Content-Length"]))
            return self.send(200, b"")
        if path not in server.files:
            return self.send(404, b"nothing here")
        data = server.files[path]
        if self.headers.get("Range") and server.ranges:
            low, _, high = self.headers["Range"].removeprefix("bytes=").partition("-")
            begin, end = int(low), min(int(high) + 1 if high else len(data), len(data))
            if begin >= len(data):
                return self.send(416, b"")
            return self.send(206, data[begin:end], {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})
        return self.send(200, data)

    do_GET = do_HEAD = do_PUT = answer  # noqa: N815 -- http.server names them so

    def tree(self, path):
        """Return the Hub's listing, two files per page: /api/datasets/<owner>/<name>/tree/<revision>/<folder>."""
        _, _, kind, owner, name, _, revision, *folder = path.split("/")
        root = f"/{kind}/{owner}/{name}/resolve/{revision}/"
        below = root + "".join(f"{part}/" for part in folder)
        found = [
            {"type": "file", "path": name.removeprefix(root), "size": len(data), "oid": "0" * 40}
            for name, data in self.server.files.items()
            if name.startswith(below)
        ]
        if not found:
            return self.send(404, b"{}")
        begin = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        if begin + 2 < len(found):
            following = f"{self.server.url}{urlsplit(self.path).path}?recursive=true&cursor={begin + 2}"
            headers["Link"] = f'<{following}>; rel="next"'
        return self.send(200, json.dumps(found[begin : begin + 2]).encode(), headers)
