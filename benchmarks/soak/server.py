"""The fault store as a process that can be killed and come back under its address, with the objects that it had."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import unescape

from tests.faultstore import Toxic
from tests.faultstore.handle import ask

BUCKET = "bucket"
_SECONDS = 30.0
_KEY_BEGINS, _KEY_ENDS = "<Key>", "</Key>"


class StoreProcess:
    """Serves a folder; what is written to it is brought to the folder before it is killed.

    Args:
        folder: The objects.
        seed: Of the faults.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.requests: Counter[str] = Counter()
        """By method, status or what struck them."""
        self.bytes_sent = 0
        self.anonymous = 0
        """Requests that nobody signed."""
        self.starts = 0
        self.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        """Storage options for it."""
        return {"endpoint_url": self.url, "key": "AKIDSOAK", "secret": "SECRETSOAK"}

    @property
    def pid(self) -> int:
        """Of the process; 0 while there is none."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Begins to serve, on the port that it had."""
        command = [sys.executable, "-m", "tests.faultstore", "--until-eof", "--bucket", BUCKET]
        command += ["--folder", str(self._folder), "--seed", str(self._seed), "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line.startswith("http://"):
            raise RuntimeError("the fault store did not start; its own words are on standard error")
        self.port = int(line.strip().rpartition(":")[2])
        self.starts += 1

    def kill(self) -> None:
        """As a machine that loses power, after what was written is safe."""
        self.count()
        self._keep_written()
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Ends it."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """It answers nothing, and keeps its connections."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """It answers again."""
        os.kill(self.pid, signal.SIGCONT)

    def plant(self, toxics: Iterable[Toxic]) -> None:
        """Faults from now on."""
        self._ask("POST", "/_faultstore/plant", json.dumps([toxic.to_dict() for toxic in toxics]).encode())

    def heal(self, still: Iterable[Toxic]) -> None:
        """No faults from now on but these."""
        self._ask("POST", "/_faultstore/reset", b'["toxics"]')
        self.plant(still)

    def restore(self, keys: Iterable[str]) -> None:
        """These objects are as the folder has them."""
        for key in keys:
            self._ask("PUT", f"/{BUCKET}/{quote(key)}", (self._folder / key).read_bytes())

    def delete(self, key: str) -> None:
        """The object is gone."""
        self._ask("DELETE", f"/{BUCKET}/{quote(key)}")

    def count(self) -> list[dict[str, Any]]:
        """Adds up the log, and empties it; the entries."""
        entries: list[dict[str, Any]] = json.loads(self._ask("POST", "/_faultstore/log"))
        self._ask("POST", "/_faultstore/reset", b'["log"]')
        for entry in entries:
            self.requests[entry["method"]] += 1
            self.requests[f"status {entry['status'] or 'none'}"] += 1
            self.requests.update(f"toxic {kind}" for kind in entry["toxics"])
            self.anonymous += not entry["access"]
            if entry["method"] == "GET" and entry["status"] in {200, 206}:
                self.bytes_sent += entry["num_bytes"]
        return entries

    def _keep_written(self) -> None:
        keys = set(self._keys("news/"))
        for key in keys:
            path = self._folder / key
            data = self._ask("GET", f"/{BUCKET}/{quote(key)}")
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                written = path.with_name(f"{path.name}.new")
                written.write_bytes(data)
                written.replace(path)  # the old file is mapped by the server
        for path in (self._folder / "news").rglob("*"):
            if path.is_file() and path.relative_to(self._folder).as_posix() not in keys:
                path.unlink()

    def _keys(self, prefix: str) -> Iterator[str]:
        last = ""
        while True:
            target = f"/{BUCKET}?list-type=2&prefix={quote(prefix)}&start-after={quote(last)}"
            listing = self._ask("GET", target).decode()
            page = [unescape(part.partition(_KEY_ENDS)[0]) for part in listing.split(_KEY_BEGINS)[1:]]
            yield from page
            if not page:
                return
            last = page[-1]

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.wait(_SECONDS)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _ask(self, method: str, target: str, body: bytes = b"") -> bytes:
        return ask(f"127.0.0.1:{self.port}", method, target, body)
