"""The handle of a running fault store: toxics to plant, and a log of requests."""

import json
import subprocess
import sys
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.faultstore.objects import Bucket, load_folder
from tests.faultstore.running import ServerThread
from tests.faultstore.server import Logged, Server, listen
from tests.faultstore.toxics import Toxic

if TYPE_CHECKING:
    from smalti.storage import Store

_ACCESS_KEY, _SECRET = "AKIDFAULTSTORE", "SECRETFAULTSTORE"
_SECONDS = 30.0
_STEERING = {"x-faultstore": "1"}


class FaultStore:
    """An S3 server on loopback that real SDKs talk to, with faults on order; a context manager.

    Args:
        toxics: Faults from the first request on.
        seed: Of all that is random: equal seeds and equal requests give equal faults.
        bucket: The bucket that is there.
        folder: Its files are objects.
        own_process: Whether it runs in a process of its own, and not in a thread of this one; needed where readers are
            forked, which hold copies of this process's sockets and so keep connections from being reset.
    """

    def __init__(
        self,
        *toxics: Toxic,
        seed: int = 0,
        bucket: str = "bucket",
        folder: Path | None = None,
        own_process: bool = False,
    ) -> None:
        self.bucket = bucket
        self._process: subprocess.Popen[str] | None = None
        self._thread: ServerThread | None = None
        if own_process:
            self._start_process(seed, folder)
        else:
            self._start_thread(seed, folder)
        self.plant(*toxics)

    def _start_thread(self, seed: int, folder: Path | None) -> None:
        server, listening = Server(seed), listen()
        server.service.buckets[self.bucket] = Bucket()
        if folder is not None:
            load_folder(server.service.buckets[self.bucket], folder)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._thread = ServerThread(server, listening)

    def _start_process(self, seed: int, folder: Path | None) -> None:
        arguments = ["--seed", str(seed), "--bucket", self.bucket, "--until-eof"]
        arguments += ["--folder", str(folder)] if folder is not None else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faultstore", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self._process.wait(_SECONDS)
            raise RuntimeError("the fault store did not start; its own words are on standard error")

    def __enter__(self) -> "FaultStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and every connection."""
        if self._thread is not None:
            self._thread.close()
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait(_SECONDS)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    @property
    def options(self) -> dict[str, Any]:
        """Storage options for `open_store`."""
        return {"endpoint_url": self.url, "key": _ACCESS_KEY, "secret": _SECRET}

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {"S3_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": _ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}

    def open(self, prefix: str = "", **options: Any) -> "Store":
        """The bucket, or a folder in it, as a store through s3fs."""
        from smalti.storage import open_store

        return open_store(f"s3://{self.bucket}/{prefix}", self.options | options)

    def plant(self, *toxics: Toxic) -> None:
        """Faults from now on, beside those that are there."""
        if toxics:
            self._steer("plant", [toxic.to_dict() for toxic in toxics])

    def heal(self) -> None:
        """No faults from now on."""
        self._steer("reset", ["toxics"])

    def reset(self, seed: int = 0) -> None:
        """As new: no faults, no objects, an empty log."""
        self._steer("reset", ["toxics", "objects", "log"])
        self._steer("seed", seed)

    def forget(self) -> None:
        """Empty the log."""
        self._steer("reset", ["log"])

    def log(self, method: str = "", key: str = "") -> list[Logged]:
        """The requests so far, in the order in which they came; those of a method, or about a key that ends so."""
        found = [Logged(**fields) for fields in json.loads(self._steer("log"))]
        return [entry for entry in found if method in {"", entry.method} and entry.key.endswith(key)]

    def put(self, key: str, data: bytes) -> None:
        """Store an object, without faults and unlogged."""
        self._ask("PUT", f"/{self.bucket}/{quote(key)}", data)

    def get(self, key: str) -> bytes:
        """An object, without faults and unlogged."""
        return self._ask("GET", f"/{self.bucket}/{quote(key)}")

    def delete(self, key: str) -> None:
        """Remove an object, without faults and unlogged."""
        self._ask("DELETE", f"/{self.bucket}/{quote(key)}")

    def put_folder(self, folder: Path, prefix: str = "") -> None:
        """Store every file below a folder, without faults and unlogged."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            self.put(f"{prefix}{path.relative_to(folder).as_posix()}", path.read_bytes())

    def _steer(self, what: str, given: Any = None) -> bytes:
        return self._ask("POST", f"/_faultstore/{what}", json.dumps(given).encode())

    def _ask(self, method: str, target: str, body: bytes = b"") -> bytes:
        return ask(self.url.removeprefix("http://"), method, target, body)


def ask(address: str, method: str, target: str, body: bytes = b"") -> bytes:
    """The answer of a fault store to its owner: without faults, and unlogged.

    Args:
        address: "host:port".
        method: Of HTTP.
        target: Path and query.
        body: What is sent.

    Raises:
        RuntimeError: it refused.
    """
    connection = HTTPConnection(address, timeout=_SECONDS)
    try:
        connection.request(method, target, body, _STEERING)
        reply = connection.getresponse()
        data = reply.read()
    finally:
        connection.close()
    if reply.status >= 400:
        raise RuntimeError(f"{method} {target}: {reply.status} {data[:300].decode(errors='replace')}")
    return data
