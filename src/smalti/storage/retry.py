"""Retries: the number of attempts, the pauses between them and the time limits of requests.

`smalti.storage.deadline` has the time limit of a whole transfer.
"""

import random
import time
from dataclasses import dataclass

CONNECT_SECONDS = 5
"""Time limit of a client library to connect."""
READ_SECONDS = 30
"""Time limit of a client library to receive more bytes."""
LIBRARY_ATTEMPTS = 2
"""Attempts of a client library at one request; `FsspecStore` adds its own, with a deadline over all."""
_RANDOM = random.SystemRandom()  # does not advance the program's own random numbers


def jitter(least: float, most: float) -> float:
    """Return a random factor for a pause, from `least` to `most`, so that colliding callers do not collide again."""
    return _RANDOM.uniform(least, most)


@dataclass(frozen=True)
class RetryOptions:
    """Limits on the number of attempts and the time of one operation."""

    attempts: int = 5
    """Total attempts, the first included; at least 1."""
    throttled_factor: int = 3
    """Factor on the further attempts when the store throttles (429, 503)."""
    timeout: float = 60.0
    """Seconds for one operation over all its attempts; large transfers get more, by `min_bytes_per_second`."""
    pause: float = 0.2
    """Seconds before the second attempt; doubles each time, with up to half as much again at random."""
    max_pause: float = 5.0
    """Longest pause, seconds."""
    min_bytes_per_second: float = 1e6
    """Lowest speed of a transfer that is not stalled: its size at this speed is added to `timeout`."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.timeout <= 0:
            raise ValueError(f"expected attempts >= 1 and timeout > 0, found {self.attempts} and {self.timeout}")

    def deadline(self, num_bytes: int = 0) -> "Deadline":
        """Return the deadline of an operation that begins now and transfers so many bytes."""
        return Deadline(self.timeout + num_bytes / self.min_bytes_per_second)

    def attempts_for(self, *, is_throttled: bool) -> int:
        """Return the total number of attempts, the first included."""
        return 1 + (self.attempts - 1) * (self.throttled_factor if is_throttled else 1)

    def pause_before(self, attempt: int) -> float:
        """Return the seconds to wait before attempt `attempt` (1 is the second)."""
        return min(self.pause * 2.0 ** (attempt - 1), self.max_pause) * jitter(1.0, 1.5)


class Deadline:
    """A point on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        """Return whether no time is left."""
        return self.left() <= 0.0
