"""The report that people read: goals with pass or fail first, then every participant of every row, then the machine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.goals import short
from benchmarks.peers import KNOWN
from benchmarks.report import RowReport
from benchmarks.results import Summary
from benchmarks.row import Entrant
from benchmarks.series import series_of, series_table

_VERDICTS = {True: "PASS", False: "**FAIL**", None: "not judged"}


def render(reports: Sequence[RowReport], facts: Mapping[str, Any]) -> str:
    """The whole page."""
    lines = [f"# {facts['name']}", "", f"`{facts['command']}`", ""]
    if facts["scale"] != "full":
        lines += [f"Scale `{facts['scale']}`: sizes too small for claims; goals are those of a full run.", ""]
    lines += [*_goals(reports), ""]
    for title, members in series_of(reports).items():
        lines += [f"### {title}", "", *series_table(members), ""]
    for report in reports:
        if report.row.series is None:
            lines += [*_row(report), ""]
    lines += ["## Machine", "", "```json", json.dumps(facts["machine"], indent=1), "```", ""]
    return "\n".join(lines)


def _goals(reports: Sequence[RowReport]) -> Iterator[str]:
    yield "## Goals"
    yield ""
    yield "Ratios: how many times better Smalti's median is, above 1 whatever the unit."
    yield "`earlier` is MosaicML · best peer · floor on the machine of the issue."
    yield ""
    yield "| work | Smalti | goal | verdict | / best peer | / MosaicML | / floor | earlier |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for report in reports:
        row, best = report.row, report.best_peer
        for entrant in report.entrants:
            if not entrant.is_ours or (report.is_left_out(entrant) and entrant.label not in row.goals):
                continue
            found = report.figures.get(entrant.label)
            verdicts = list(_verdicts(report, entrant.label))
            cells = [
                row.title if entrant.label == "smalti" else f"{row.title} ({entrant.label})",
                _spread(found, row.unit),
                "; ".join(goal for goal, _ in verdicts) or "-",
                "; ".join(verdict for _, verdict in verdicts) or "-",
                _ratio(report.ratio(entrant.label, "best")) + (f" {best}" if best and found else ""),
                _ratio(report.ratio(entrant.label, "mosaicml")),
                _ratio(report.ratio(entrant.label, row.floor)) + (f" {row.floor}" if row.floor else ""),
                row.earlier,
            ]
            yield f"| {' | '.join(cells)} |"


def _verdicts(report: RowReport, label: str) -> Iterator[tuple[str, str]]:
    references = report.references()
    for goal in report.row.goals.get(label, ()):
        found = report.figures.get(label)
        met = None if found is None else goal.is_met(found.median, references)
        threshold = goal.threshold(references)
        of_now = "" if goal.of is None or threshold is None else f" ({short(threshold)})"
        yield goal.describe() + of_now, _VERDICTS[met]


def _row(report: RowReport) -> Iterator[str]:
    row = report.row
    yield f"### {row.title}"
    yield ""
    extra = "".join(f" {name} |" for name in row.more)
    yield f"| who | {row.unit or row.figure} | / best peer | / floor | peak MB |{extra}"
    yield f"| --- | --- | --- | --- | --- |{' --- |' * len(row.more)}"
    for entrant in report.entrants:
        found = report.figures.get(entrant.label)
        if found is None:
            yield f"| {entrant.label} | {report.trouble(entrant)} | | | |{' |' * len(row.more)}"
            continue
        memory = report.summary(entrant, "tree_rss_mb") or report.summary(entrant, "max_rss_mb")
        cells = [
            _named(report, entrant),
            _spread(found, ""),
            _ratio(report.ratio(entrant.label, "best")),
            _ratio(report.ratio(entrant.label, row.floor)),
            f"{memory.high:.0f}" if memory else "-",
            *(_spread(report.summary(entrant, name), "") for name in row.more),
        ]
        yield f"| {' | '.join(cells)} |"


def _named(report: RowReport, entrant: Entrant) -> str:
    notes = []
    if entrant.is_floor:
        notes.append("floor")
    elif report.row.needs_true_shuffle and not KNOWN[entrant.peer].true_shuffle:
        notes.append("weak shuffle")
    if entrant.max_samples is not None:
        notes.append(f"at most {short(entrant.max_samples)} samples")
    return entrant.label + (f" ({', '.join(notes)})" if notes else "")


def _spread(found: Summary | None, unit: str) -> str:
    if found is None:
        return "-"
    around = f" ({short(found.low)}-{short(found.high)})" if found.runs > 1 else ""
    return f"{short(found.median)}{around} {unit}".rstrip()


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
