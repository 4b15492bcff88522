"""What reading processes are told, as JSON; imports no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENDED, TYPED, OTHER = 0, 3, 4
"""Exit statuses: asked to end; a typed error; anything else."""


@dataclass(frozen=True)
class Reads:
    """What a process reads, and how; JSON."""

    bucket: str
    streams: list[tuple[str, int]]
    """Name and samples of each set."""
    cache: str
    cache_limit: int
    seed: int
    block: int
    """Samples that are shuffled together, over all canonical nodes."""
    batch_size: int
    timeout: float
    """Seconds in which a shard must be here."""
    store: dict[str, Any]
    """Storage options."""
    version: int | None = 1
    loader: dict[str, Any] = field(default_factory=dict)
    """Arguments of the loader."""
    plants: list[str] = field(default_factory=list)
    """What is to go wrong, so that somebody notices."""


@dataclass(frozen=True)
class Told:
    """What a rank is told; JSON."""

    folder: str
    """Of the job."""
    life: int
    """Starts of the job, from 1."""
    rank: int
    num_ranks: int
    save_every: int
    """Steps."""
    deadline: float
    """Seconds that a collective call may take."""
    reads: Reads

    @property
    def name(self) -> str:
        """Of its files."""
        return f"life-{self.life:05}-rank-{self.rank}"

    @property
    def journal(self) -> Path:
        """Its journal."""
        return Path(self.folder) / f"{self.name}.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The job's newest state."""
        return Path(self.folder) / "state.json"


def reads_of(given: dict[str, Any]) -> Reads:
    """From JSON."""
    return Reads(**{**given, "streams": [(name, count) for name, count in given["streams"]]})


def told_of(given: dict[str, Any]) -> Told:
    """From JSON."""
    return Told(**{**given, "reads": reads_of(given["reads"])})
