"""One row of the comparison with its figures: who is the best peer, and how many times better is each."""

from benchmarks.peers import KNOWN, is_installed
from benchmarks.plan import key_of, task_of
from benchmarks.results import Results, Summary
from benchmarks.row import Entrant, Row
from benchmarks.runner import RunOptions


class RowReport:
    """One row with its figures."""

    def __init__(self, row: Row, options: RunOptions, results: Results) -> None:
        self.row, self._results = row, results
        self._keys = {
            entrant.label: key_of(task_of(row, entrant, options.scale, str(options.work))) for entrant in row.entrants
        }
        self.entrants = [entrant for entrant in row.entrants if entrant.peer in options.peers]
        self.figures: dict[str, Summary] = {}
        for entrant in self.entrants:
            found = self.summary(entrant, row.figure)
            if found is not None:
                self.figures[entrant.label] = found

    def summary(self, entrant: Entrant, figure: str) -> Summary | None:
        """One figure of one participant."""
        return self._results.summary(self._keys[entrant.label], figure)

    def trouble(self, entrant: Entrant) -> str:
        """Why a participant has no figure."""
        if not is_installed(entrant.peer):
            return "not installed: `python -m benchmarks setup`"
        return self._results.trouble(self._keys[entrant.label]) or "not measured"

    def is_left_out(self, entrant: Entrant) -> bool:
        """Whether a participant was not to be run, or cannot do it."""
        return self.trouble(entrant).startswith("unsupported")

    @property
    def best_peer(self) -> str | None:
        """The label of the best library that is not ours, with a true shuffle where the row asks for one."""
        rivals = [entrant.label for entrant in self.entrants if self._is_rival(entrant)]
        choose = min if self.row.lower_is_better else max
        return choose(rivals, key=lambda label: self.figures[label].median) if rivals else None

    def _is_rival(self, entrant: Entrant) -> bool:
        if entrant.is_ours or entrant.is_floor or entrant.label not in self.figures:
            return False
        return not self.row.needs_true_shuffle or KNOWN[entrant.peer].true_shuffle

    def references(self) -> dict[str, float]:
        """What goals and ratios refer to: floors by label, `mosaicml`, and `best`."""
        wanted = {label: found.median for label, found in self.figures.items()}
        if self.best_peer is not None:
            wanted["best"] = wanted[self.best_peer]
        return wanted

    def ratio(self, label: str, to: str | None) -> float | None:
        """How many times better the participant is than the reference; above 1 is better whatever the unit."""
        references = self.references()
        if to is None or to not in references or label not in self.figures:
            return None
        value, reference = self.figures[label].median, references[to]
        if self.row.lower_is_better:
            value, reference = reference, value
        return value / reference if reference else None
