"""Journals: what a process saw and did, a line of JSON for each event; whole lines survive its death."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Appends events to a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        """One event, with the time."""
        os.write(self._descriptor, json.dumps({"event": event, "at": time.time(), **facts}).encode() + b"\n")

    def close(self) -> None:
        """No more events."""
        os.close(self._descriptor)


class Tail:
    """The events of a journal as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Events that came since the last look; a line that is cut off is not one yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._read += len(line)
                    yield json.loads(line)
        except FileNotFoundError:
            return
