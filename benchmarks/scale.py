"""How much is measured: the sizes of a real run, of a quick one, and of the one that only proves that it works."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes and limits of one run of the harness."""

    name: str
    samples: Mapping[str, int]
    """Per workload."""
    linked_samples: int
    """In the one shard that large sets are made of."""
    large_copies: int
    """Links in the largest set."""
    seconds: float
    """Limit of one timed epoch."""
    reads: int
    """Single samples taken at random."""
    runs: int
    """By default."""
    divisor: int = 1
    """Of the sizes that rows give themselves."""
    timeout: float = 180.0
    """Seconds for one task."""


SCALES: Mapping[str, Scale] = {
    "full": Scale(
        "full",
        {"tiny": 300_000, "jpeg": 20_000, "tokens": 20_000, "photos": 49_280, "rows": 300_000},
        20_000,
        5_000,
        1.5,
        20_000,
        3,
    ),
    "quick": Scale(
        "quick",
        {"tiny": 60_000, "jpeg": 4_000, "tokens": 4_000, "photos": 4_992, "rows": 30_000},
        4_000,
        200,
        0.5,
        5_000,
        1,
        10,
    ),
    "smoke": Scale(
        "smoke",
        {"tiny": 2_000, "jpeg": 512, "tokens": 1_024, "photos": 512, "rows": 1_000},
        1_000,
        10,
        0.1,
        200,
        1,
        100,
        timeout=60.0,
    ),
}
