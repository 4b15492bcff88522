"""What a fault is: planted, healed after its time, and which typed errors it explains."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.soak.server import StoreProcess
from tests.faultstore import Toxic

Heal = Callable[[], None]


class Impossible(Exception):  # noqa: N818 -- a signal: it cannot be planted here and now
    """There is nothing now that this fault could strike."""


class Field(Protocol):
    """What faults are planted in."""

    store: StoreProcess
    objects: Path
    """The store's objects, as they should be."""
    cache: Path
    roots: list[str]
    """Names of the folders in the cache that hold the copies of the jobs' mixture."""
    random: random.Random
    toxics: list[Toxic]
    """Those that are in the way now."""
    has_own_disk: bool
    """Whether the cache is a file system of its own, which can be filled."""

    def readers(self) -> list[int]:
        """Process ids of ranks and their workers."""

    def workers(self) -> list[int]:
        """Process ids of loader workers."""

    def ranks(self) -> list[int]:
        """Process ids of ranks."""

    def publish(self) -> None:
        """A writer begins to publish one more version of the news."""

    def run(self, command: list[str]) -> None:
        """Runs a program beside the readers."""

    def is_publishing(self) -> bool:
        """Whether it is still at it."""


@dataclass(frozen=True)
class Fault:
    """One of the catalogue."""

    kind: str
    text: str
    plant: Callable[[Field], Heal | None]
    """Does it, and says how it is healed; raises `Impossible` where there is nothing to strike."""
    seconds: float = 3.0
    """Until it is healed."""
    explains: frozenset[str] = frozenset()
    """Names of the error classes that it may raise in a reader; none: the run must go on exactly."""
    needs_own_disk: bool = False


@dataclass
class Planted:
    """A fault that was planted."""

    kind: str
    begin: float
    """Seconds since 1970."""
    explains: frozenset[str]
    planned_end: float
    end: float | None = None
    """When it was healed."""
    detail: str = ""
    heal: Heal | None = None
    errors: list[str] = field(default_factory=list)
    """Names of the errors that it explains."""


def classes(*names: str) -> frozenset[str]:
    """Names of error classes."""
    return frozenset(names)
