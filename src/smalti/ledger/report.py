"""What a check of a ledger found, as values that a program can use and a person can be told."""

from dataclasses import asdict, dataclass, field
from typing import Any

MOST = 20  # problems of one kind that are told one by one; all are counted


@dataclass(frozen=True)
class Problem:
    """One thing that contradicts the claim that each sample was taken once."""

    kind: str
    """gap, double, wrong_id, outside, damaged, missing_file, unprovable or contradiction."""
    message: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Epoch, position, sample ids, ranks and lives, as far as they are known."""


@dataclass(frozen=True)
class EpochReport:
    """One epoch, as the lives of the run that count have taken it."""

    epoch: int
    size: int
    """Samples of the whole epoch."""
    expected: int
    """Samples that must have been taken: all, or as far as an open epoch has come."""
    taken: int
    """Different positions that were taken."""
    repeats: int
    """Samples that were read again to fill a last step."""
    is_finished: bool


@dataclass
class LedgerReport:
    """The outcome of a check."""

    folder: str
    lives: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[EpochReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """At most some tens of each kind; `counts` has them all."""
    counts: dict[str, int] = field(default_factory=dict)
    """Kind of problem to how often it was met; for gaps, positions."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know, and is no fault."""
    superseded: int = 0
    """Samples of steps that a later life or pass took again."""
    in_flight: int = 0
    """Samples of steps that not all ranks had begun when the last life ended."""
    compared: int = 0
    """Sample ids that were compared with the plan."""

    @property
    def ok(self) -> bool:
        """Whether each planned sample was taken exactly once, as far as the run went."""
        return not self.counts

    def add(self, kind: str, message: str, *, times: int = 1, **facts: Any) -> None:
        """Counts a problem, and keeps it if it is among the first of its kind."""
        self.count(kind, times)
        if sum(problem.kind == kind for problem in self.problems) < MOST:
            self.problems.append(Problem(kind, message, facts))

    def count(self, kind: str, times: int) -> None:
        """Counts problems that are not told one by one."""
        if times:
            self.counts[kind] = self.counts.get(kind, 0) + times

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able values."""
        return {"ok": self.ok, **asdict(self)}
