"""A row of the comparison as a value: what is done, who does it, and what is asked of Smalti."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.goals import Goal
from benchmarks.peers import KNOWN

SMALL, LARGE = 5, 5_000
"""Links of one shard of 20,000 samples: 10^5 and 10^8 of them."""


@dataclass(frozen=True)
class Entrant:
    """One participant of a row."""

    label: str
    peer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    max_runs: int | None = None
    """Slow ones that vary little are not run as often as the others."""
    max_samples: int | None = None

    @property
    def is_ours(self) -> bool:
        """Smalti, in whatever form."""
        return self.peer.startswith("smalti")

    @property
    def is_floor(self) -> bool:
        """A limit of the machine."""
        return KNOWN[self.peer].is_floor


@dataclass(frozen=True)
class Series:
    """A table that several rows make together, a column each; participants are its lines."""

    title: str
    column: str
    """Head of this row's column."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    key: str
    title: str
    measure: str
    workload: str
    figure: str
    """The figure that is compared."""
    unit: str
    entrants: tuple[Entrant, ...]
    goals: Mapping[str, tuple[Goal, ...]]
    """By the label of an entrant of ours."""
    floor: str | None = None
    """The label of the floor that the ratio is taken to."""
    earlier: str = ""
    """MosaicML, best peer, floor, as measured for the issue."""
    options: Mapping[str, Any] = field(default_factory=dict)
    lower_is_better: bool = False
    more: tuple[str, ...] = ()
    """Other figures worth printing."""
    needs_true_shuffle: bool = False
    """Peers whose shuffle is weak are shown, but are not the best peer."""
    copies: int | None = None
    """For sets of linked shards."""
    samples: int | None = None
    """Instead of the workload's at full scale, or for sets of linked shards in the one shard."""
    series: Series | None = None
    """Rows that differ in one size stand in one table."""


def participants(*names: str, **slow: int) -> tuple[Entrant, ...]:
    """Participants by name; keywords give those that run fewer times."""
    return tuple(Entrant(name, name, max_runs=slow.get(name)) for name in (*names, *slow))
