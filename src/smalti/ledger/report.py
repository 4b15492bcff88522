"""The report of a ledger's check: values for programs, with messages for people."""

from dataclasses import asdict, dataclass, field
from typing import Any

MAX_LISTED = 20  # problems of one kind that are listed; all are counted


@dataclass(frozen=True)
class Problem:
    """One contradiction to the claim that each planned sample was taken once."""

    kind: str
    """gap, double, wrong_id, outside, damaged, missing_file, sum, unmarked, unprovable or contradiction."""
    message: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Epoch, position, sample ids, ranks and lives, as far as known."""


@dataclass(frozen=True)
class EpochReport:
    """The samples of one epoch, over all lives of the run and without superseded steps."""

    epoch: int
    size: int
    """Samples of the whole epoch."""
    expected: int
    """Samples that must have been taken: all, or those before the last complete step of an open epoch."""
    taken: int
    """Number of distinct positions whose samples were read."""
    repeats: int
    """Samples that were read again to fill the last step."""
    is_finished: bool
    skipped: int = 0
    """Number of positions whose samples could not be read; a repeat was read in the place of each."""


@dataclass
class LedgerReport:
    """The outcome of a check."""

    folder: str
    lives: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[EpochReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """The first `MAX_LISTED` of each kind; `counts` has the total numbers."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of problems by kind; for gaps, of positions."""
    notes: list[str] = field(default_factory=list)
    """Observations that are not problems."""
    superseded: int = 0
    """Number of samples in steps that a later life or pass took again."""
    in_flight: int = 0
    """Number of samples in steps that not all ranks had begun when the last life ended."""
    compared: int = 0
    """Number of sample ids that were compared with the plan."""
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """The first `MAX_LISTED` skipped samples, with epoch, position, sample id, shard, cause, rank and life."""

    @property
    def ok(self) -> bool:
        """True if each planned sample was taken exactly once, or skipped with its cause, as far as the run went."""
        return not self.counts

    def add(self, kind: str, message: str, *, times: int = 1, **facts: Any) -> None:
        """Count a problem, and list it if it is among the first of its kind."""
        self.count(kind, times)
        if sum(problem.kind == kind for problem in self.problems) < MAX_LISTED:
            self.problems.append(Problem(kind, message, facts))

    def count(self, kind: str, times: int) -> None:
        """Count problems that are not listed."""
        if times:
            self.counts[kind] = self.counts.get(kind, 0) + times

    def add_skipped(self, **facts: Any) -> None:
        """List a skipped sample if it is among the first; `EpochReport.skipped` counts them."""
        if len(self.skipped) < MAX_LISTED:
            self.skipped.append(facts)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return {"ok": self.ok, **asdict(self)}
