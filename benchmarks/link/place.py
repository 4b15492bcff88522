"""Where a set lies for those who read it over the link."""

from dataclasses import dataclass
from pathlib import Path

LATENCY_SECONDS = 0.03
BYTES_PER_SECOND = 200e6


@dataclass(frozen=True)
class Place:
    """A set behind the link, and a local folder for its shards."""

    url: str
    """`s3://...`; without a slash at its end."""
    endpoint: str
    """Of the server; credentials are in the environment."""
    cache: Path


@dataclass(frozen=True)
class RemoteOptions:
    """How a set is read over the link, besides what `ReadOptions` say."""

    block_size: int | None = None
    """Samples within which is shuffled; the library's own where None."""
    cache_bytes: int | None = None
    """A bound on the cache."""
