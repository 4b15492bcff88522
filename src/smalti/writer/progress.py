"""Progress display: one line of text about work that takes long, redrawn on a terminal and repeated in a log.

The callers decide what a `ProgressLine` says and whether it is shown at all; it decides when and how it is written.
`UploadProgress` shows the shards and bytes that a writer has stored.
"""

import sys
import threading
import time
from typing import TextIO

from smalti.format import ShardInfo

TERMINAL_SECONDS = 0.5  # between two states of the line on a terminal
LOG_SECONDS = 10.0  # between two lines where each one stays


class ProgressLine:
    """A line of progress on one stream. Thread-safe.

    Args:
        stream: where the line is written. A terminal has one line that is redrawn; elsewhere every state is a new line.
        silent_seconds: time during which nothing is written, so that short work shows nothing.
    """

    def __init__(self, stream: TextIO, *, silent_seconds: float = 0.0) -> None:
        self._stream = stream
        self._begin = time.monotonic()
        self._first_due = self._due = self._begin + silent_seconds
        self._lock = threading.Lock()
        self._width = 0
        self._closed = False

    @property
    def elapsed_seconds(self) -> float:
        """Time since the line was created."""
        return time.monotonic() - self._begin

    @property
    def wait_seconds(self) -> float:
        """Time until `show` writes again."""
        return max(0.0, self._due - time.monotonic())

    def show(self, text: str) -> None:
        """Write a state of the work; a no-op if the last state is too recent or the line is closed."""
        with self._lock:
            if not self._closed and time.monotonic() >= self._due:
                self._write(text)
                self._due = time.monotonic() + (TERMINAL_SECONDS if self._stream.isatty() else LOG_SECONDS)

    def close(self, text: str | None = None) -> None:
        """Write a last state, unless the work was short, and end the line. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if text is not None and time.monotonic() >= self._first_due:
                self._write(text)
            if self._width:
                self._stream.write("\n")
                self._stream.flush()

    def _write(self, text: str) -> None:
        if self._stream.isatty():
            self._stream.write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()


class UploadProgress:
    """The number of shards and bytes that one writer has stored so far. Thread-safe."""

    def __init__(self) -> None:
        self._line = ProgressLine(sys.stderr)
        self._lock = threading.Lock()
        self._num_shards = self._num_bytes = 0

    def add(self, info: ShardInfo) -> None:
        """Count one stored shard, and show the new state."""
        with self._lock:
            self._num_shards += 1
            self._num_bytes += sum(file.num_bytes for file in info.stored_files)
            self._line.show(self._text)

    def close(self) -> None:
        """Show the last state and end the line; nothing is shown if no shard was stored."""
        self._line.close(self._text if self._num_shards else None)

    @property
    def _text(self) -> str:
        return f"stored {self._num_shards} shards, {self._num_bytes / 1e6:,.1f} MB"
