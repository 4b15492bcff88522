"""Small archives, complete and damaged, and a web server that sends given bytes."""

import contextlib
import io
import tarfile
import zipfile

from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer

FILES = {"photos/daisy/1.jpg": b"one", "photos/roses/2.jpg": b"two" * 1000, "photos/LICENSE.txt": b"CC-BY"}


def tar_bytes(files=FILES, mode="w:gz", members=()):
    """Return a tar of the files, and of members without content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as out:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
        for info in members:
            out.addfile(info)
    return packed.getvalue()


def zip_bytes(files=FILES, method=zipfile.ZIP_DEFLATED):
    """Return a zip of the files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as out:
        for name, data in files.items():
            out.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    return packed.getvalue()


def member(name, kind, linked=""):
    """Return a member of a tar without content."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, linked
    return info


def assert_clean(into):
    """Assert that no partly unpacked folder remains."""
    assert not into.exists() or not list(into.iterdir())


class RawServer(LoopbackServer):
    """A server that answers each request with given bytes, status line included, and records the requested paths.

    `answers` are bytes, or functions that write to the connection, by path without query; the connection then ends.
    """

    def __init__(self, answers, certificate=None):
        super().__init__(RawHandler, certificate)
        self.answers, self.seen = answers, []


class RawHandler(LoopbackHandler):
    def answer(self):
        self.server.seen.append(self.path)
        missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        reply = self.server.answers.get(self.path.split("?")[0], missing)
        with contextlib.suppress(ConnectionError):
            if callable(reply):
                reply(self.wfile.write)
            else:
                self.wfile.write(reply)
        self.close_connection = True

    do_GET = answer  # noqa: N815 -- http.server names it so


def reply(body, *headers, status="200 OK"):
    """Return the bytes of an HTTP response."""
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def whole(body):
    """Return the bytes of an HTTP response with its length."""
    return reply(body, f"Content-Length: {len(body)}")


def redirect(address):
    """Return the bytes of a redirect."""
    return reply(b"", f"Location: {address}", "Content-Length: 0", status="302 Found")
