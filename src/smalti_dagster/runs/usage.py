"""Time and memory that a part of a step takes, of this process and all that it started: Java, training ranks.

Memory is the sum of the resident sizes, sampled. Pages that processes share are counted in each of them.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

import psutil

SAMPLE_SECONDS = 1.0
_MB = 2**20


class Usage:
    """The time since the last `take`, and the largest memory that was sampled since then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._peak = self._java = 0

    def sample(self) -> None:
        """Look at the memory of this process and its descendants."""
        total = java = 0
        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                size = process.memory_info().rss
                total += size
                java += size if process.name().startswith("java") else 0
        with self._lock:
            self._peak, self._java = max(self._peak, total), max(self._java, java)

    def take(self) -> dict[str, float]:
        """Return the figures as metadata, and begin anew."""
        self.sample()
        with self._lock:
            now = time.monotonic()
            figures: dict[str, float] = {
                "seconds": round(now - self._begin, 1),
                "peak_memory_mb": round(self._peak / _MB),
                **({"peak_java_memory_mb": round(self._java / _MB)} if self._java else {}),
            }
            self._begin, self._peak, self._java = now, 0, 0
        return figures


@contextlib.contextmanager
def sampled_usage(seconds: float = SAMPLE_SECONDS) -> Iterator[Usage]:
    """Yield the usage of this process, which a thread samples while the body runs."""
    usage, done = Usage(), threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            usage.sample()

    thread = threading.Thread(target=watch, name="smalti-usage", daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        done.set()
        thread.join(timeout=seconds)
