"""What was measured: appended to a log as it comes, so that a run that was cut short goes on where it stopped."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.plan import Planned
from benchmarks.process import Outcome

_SETTLED = frozenset({"ok", "unsupported"})


@dataclass(frozen=True)
class Summary:
    """One figure over all runs."""

    median: float
    low: float
    high: float
    runs: int


class Results:
    """The outcomes of all tasks so far, by task and run; every new one is on the disk before the next task starts."""

    def __init__(self, log: Path, *, resume: bool) -> None:
        self._log = log
        self._lines: list[dict[str, Any]] = []
        if resume and log.exists():
            self._lines = [json.loads(line) for line in log.read_text().splitlines()]
        else:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All of them, as JSON."""
        return self._lines

    def add(self, planned: Planned, run: int, outcome: Outcome, facts: Mapping[str, Any]) -> None:
        """Remembers one outcome."""
        line = {"key": planned.key, "label": planned.label, "run": run, **facts, **asdict(outcome)}
        self._lines.append(line)
        with self._log.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def has(self, planned: Planned, run: int) -> bool:
        """Whether this run is there and need not be repeated: failures are tried again."""
        return any(
            line["key"] == planned.key and line["run"] == run and line["status"] in _SETTLED for line in self._lines
        )

    @property
    def failures(self) -> list[str]:
        """The labels of those that failed and did not succeed when tried again, once per run."""
        good = {(line["key"], line["run"]) for line in self._lines if line["status"] in _SETTLED}
        return [line["label"] for line in self._lines if (line["key"], line["run"]) not in good]

    def summary(self, key: str, figure: str) -> Summary | None:
        """The figure over the runs that gave it; None when none did."""
        values = [line["figures"][figure] for line in self._good(key) if figure in line["figures"]]
        return Summary(median(values), min(values), max(values), len(values)) if values else None

    def trouble(self, key: str) -> str:
        """Why there is no figure, in one line; empty when there is one, or when it was never tried."""
        lines = [line for line in self._lines if line["key"] == key]
        if not lines or self._good(key):
            return ""
        return f"{lines[-1]['status']}: {first_line(lines[-1]['detail'])}"

    def _good(self, key: str) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["key"] == key and line["status"] == "ok"]


def first_line(text: str) -> str:
    """What fits into a table."""
    return text.strip().split("\n", 1)[0][:200]
