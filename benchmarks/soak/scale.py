"""How large a soak is, and how often something happens in it."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak.samples import SetOf

CACHE_PART = 0.25
"""Of the sets' bytes, what copies may take."""


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    seconds: float
    seed: int
    work: Path
    fault_every: float
    kill_every: float
    deadline: float
    """Seconds in which every job goes on, whatever happens."""
    small: bool
    plants: tuple[str, ...] = ()
    is_private: bool = False
    """Whether the cache's disk and shared memory are this run's own."""

    @property
    def timeout(self) -> float:
        """Seconds in which a shard must be here; longer than any stop of a process, on a busy machine, too."""
        return 30.0

    @property
    def cache(self) -> Path:
        """The cache that all share."""
        return self.work / "cache"


def mixture(*, small: bool) -> list[SetOf]:
    """The sets that the jobs read together."""
    part = 4 if small else 1
    return [
        SetOf("photos", 3_200 // part, 12_000),
        SetOf("packed", 1_600 // part, 12_000, compression="zstd"),
        SetOf("texts", 1_600 // part, 10_000, is_text=True),
    ]


def news(*, small: bool) -> SetOf:
    """The set of which versions appear meanwhile."""
    return SetOf("news", 240 if small else 960, 8_000)


def disk_bytes(*, small: bool) -> int:
    """Of the cache's own disk."""
    return (32 if small else 96) << 20
