"""The progress bar of writers, for `progress_bar=True`: stored shards and bytes, on the error stream."""

import importlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from smalti.format import ShardInfo

_PAUSE_SECONDS = 0.1  # between two plain lines, so that logs stay short


class UploadProgress:
    """A display of stored shards and bytes: a tqdm bar if tqdm is installed, else a plain line. Thread-safe."""

    def __init__(self, *, make_bar: Callable[[], Any] | None = None) -> None:
        """Create the display; it is shown from the first shard on.

        Args:
            make_bar: Returns an object with the methods of a tqdm bar, or None; by default a tqdm bar if installed.
        """
        self._lock = threading.Lock()
        self._make_bar = make_bar or _tqdm
        self._bar: Any = None
        self._shards = 0
        self._bytes = 0
        self._shown = 0.0

    def add(self, info: ShardInfo) -> None:
        """Count one stored shard."""
        num_bytes = sum(file.num_bytes for file in info.stored_files)
        with self._lock:
            if self._shards == 0:
                self._bar = self._make_bar()
            self._shards += 1
            self._bytes += num_bytes
            if self._bar is not None:
                self._bar.set_postfix_str(f"{self._shards} shards", refresh=False)
                self._bar.update(num_bytes)
            elif time.monotonic() - self._shown >= _PAUSE_SECONDS:
                self._write("")

    def close(self) -> None:
        """Show the final state, and end the line."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
            elif self._shards:
                self._write("\n")

    def _write(self, end: str) -> None:
        self._shown = time.monotonic()
        sys.stderr.write(f"\rstored {self._shards} shards, {self._bytes / 1e6:,.1f} MB{end}")
        sys.stderr.flush()


def _tqdm() -> Any:
    try:
        module = importlib.import_module("tqdm")
    except ImportError:
        return None
    return module.tqdm(desc="stored", unit="B", unit_scale=True, file=sys.stderr)
