"""Rows that differ in one size as one table: participants down, sizes across, and why somebody was not run below."""

from collections.abc import Iterator, Sequence

from benchmarks.goals import short
from benchmarks.report import RowReport


def series_of(reports: Sequence[RowReport]) -> dict[str, list[RowReport]]:
    """The rows of each series, by its title."""
    found: dict[str, list[RowReport]] = {}
    for report in reports:
        if report.row.series is not None:
            found.setdefault(report.row.series.title, []).append(report)
    return found


def series_table(reports: Sequence[RowReport]) -> Iterator[str]:
    """Medians, and the least and most of several runs; in brackets the memory that the process took above its imports.

    Notes below the table say why a participant has no figure.
    """
    notes: dict[str, int] = {}
    yield "Median (least-most) of the runs in seconds, and peak memory above the imports."
    yield ""
    yield "| who | " + " | ".join(report.row.series.column for report in reports if report.row.series) + " |"
    yield "| --- |" + " --- |" * len(reports)
    for label in dict.fromkeys(entrant.label for report in reports for entrant in report.entrants):
        yield f"| {label} | " + " | ".join(_cell(report, label, notes) for report in reports) + " |"
    for note, number in notes.items():
        if number == 1:
            yield ""
        yield f"- [{number}] {note}"


def _cell(report: RowReport, label: str, notes: dict[str, int]) -> str:
    entrant = next((each for each in report.entrants if each.label == label), None)
    if entrant is None:
        return ""
    found = report.figures.get(label)
    if found is None:
        note = report.trouble(entrant).removeprefix("unsupported: ")
        return f"- [{notes.setdefault(note, len(notes) + 1)}]"
    memory = report.summary(entrant, "added_mb")
    around = f" ({short(found.low)}-{short(found.high)})" if found.runs > 1 else ""
    return f"{short(found.median)}{around}" + (f", {memory.high:,.0f} MB" if memory else "")
