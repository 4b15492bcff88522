"""Progress of a write: stored shards and bytes, shown on the error stream if the user asks for it."""

import sys
import threading

from smalti.format import ShardInfo
from smalti.progress import ProgressLine


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
