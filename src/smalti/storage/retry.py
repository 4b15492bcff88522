"""Trying again: bounded in number and in time, with jittered, growing pauses."""

import random
import time
from dataclasses import dataclass

_CHANCE = random.SystemRandom()  # the program's own random numbers are not ours to use up


def jitter(least: float, most: float) -> float:
    """A factor for a pause, from `least` to `most`: those who collided do not meet again."""
    return _CHANCE.uniform(least, most)


@dataclass(frozen=True)
class RetryOptions:
    """How long and how often a store may be asked."""

    attempts: int = 5
    """Total attempts, the first included; at least 1."""
    patience: int = 3
    """Times as many further attempts where the store asks for a slower pace (429, 503)."""
    timeout: float = 60.0
    """Seconds for one operation over all its attempts; large transfers get more, by `floor_bytes_per_second`."""
    pause: float = 0.2
    """Seconds before the second attempt; doubles each time, with up to half as much again at random."""
    max_pause: float = 5.0
    """Longest pause, seconds."""
    floor_bytes_per_second: float = 1e6
    """A transfer slower than this counts as stalled."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.timeout <= 0:
            raise ValueError(f"expected attempts >= 1 and timeout > 0, found {self.attempts} and {self.timeout}")

    def deadline(self, num_bytes: int = 0) -> "Deadline":
        """The deadline for an operation that moves so many bytes, from now."""
        return Deadline(self.timeout + num_bytes / self.floor_bytes_per_second)

    def attempts_for(self, *, is_throttled: bool) -> int:
        """Total attempts at something that fails in this way."""
        return 1 + (self.attempts - 1) * (self.patience if is_throttled else 1)

    def pause_before(self, attempt: int) -> float:
        """Seconds to wait before attempt number `attempt` (1 is the second)."""
        return min(self.pause * 2.0 ** (attempt - 1), self.max_pause) * jitter(1.0, 1.5)


class Deadline:
    """A point on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        """Whether no time is left."""
        return self.left() <= 0.0
