"""The output of commands: JSON documents, facts, tables and byte counts.

On a terminal tables have lines and colours. Elsewhere they are plain text: a line for the headings and one for each
row, columns with two spaces between them, nothing cut off. Characters that a terminal interprets are escaped in all of
them: names and values of a set may be hostile.

Also here: progress bars on stderr, where it is a terminal and the output is not JSON.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from smalti.cli.faults import OutputLost
from smalti.cli.options import Output
from smalti.texts import byte_count, printable

_NOT_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that `json.dumps` leaves as they are, and that change a terminal or are no text."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    is_number: bool = False
    only_piped: bool = False
    """True for a column that a terminal of 80 columns has no room for."""


def write(text: str = "") -> None:
    """Write one line, or several, to stdout.

    Raises:
        OutputLost: the process that read them has ended, or a disk is full.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding))
    except OSError as fault:
        raise OutputLost from fault


def write_json(found: Any) -> None:
    """Write one JSON document."""
    text = json.dumps(found, indent=2, ensure_ascii=False)
    write(_NOT_IN_JSON.sub(lambda each: f"\\u{ord(each[0]):04x}", text))


def show(output: Output, found: Any, text: str | Callable[[], object]) -> None:
    """Write what a command found: one JSON document, or text for people.

    Args:
        output: The options of the command.
        found: The document, or a report of the library that makes it by `to_dict`.
        text: The text, or a function that writes it.
    """
    if output.as_json:
        write_json(found.to_dict() if hasattr(found, "to_dict") else found)
    elif isinstance(text, str):
        write(text)
    else:
        text()


def write_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Write a line for each fact: its name, padded, and its value."""
    rows = [(printable(name), printable(str(value))) for name, value in facts]
    width = max((len(name) for name, _ in rows), default=0)
    is_plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    for name, value in rows:
        title = name if is_plain else f"\x1b[1m{name}\x1b[0m"
        write(f"{title}{' ' * (width - len(name))}  {value}".rstrip())


def write_table(columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; numbers have separators of thousands and stand at the right."""
    described = [each if isinstance(each, Column) else Column(each) for each in columns]
    described = [replace(each, title=printable(each.title)) for each in described]
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return
    if sys.stdout.isatty():
        _write_rich(described, cells)
        return
    cells.insert(0, [each.title for each in described])
    widths = [max(len(row[i]) for row in cells) for i in range(len(described))]
    for row in cells:
        padded = (
            text.rjust(width) if each.is_number else text.ljust(width)
            for text, width, each in zip(row, widths, described, strict=True)
        )
        write("  ".join(padded).rstrip())


def exact_bytes(num_bytes: int) -> str:
    """Return a number of bytes as people read it, with the exact number."""
    return byte_count(num_bytes) if num_bytes < 1024 else f"{byte_count(num_bytes)} ({num_bytes:,} bytes)"


def duration(seconds: float) -> str:
    """Return a time as people read it: `1 h 05 min`, `12 min 30 s`, `4.2 s`."""
    if seconds < 99.95:
        return f"{seconds:,.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value))


def _write_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    shown = [i for i, each in enumerate(columns) if not each.only_piped]
    for i in shown:
        right = columns[i].is_number
        table.add_column(Text(columns[i].title), justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        table.add_row(*(Text(row[i]) for i in shown))
    console = Console(highlight=False)
    with console.capture() as text:
        console.print(table)
    write(text.get().rstrip("\n"))


OnProgress = Callable[[int, int], None]
"""Called by the library with what is done and the total."""


@contextmanager
def progress(output: Output, what: str, *, is_bytes: bool = False) -> Iterator[OnProgress | None]:
    """Yield a function that shows what is done of a total; None where nothing is to be shown.

    Args:
        output: The options of the command.
        what: What is counted, in two or three words: "shards checked".
        is_bytes: Show byte counts and the speed.
    """
    if output.as_json or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars
    from rich.console import Console

    counts = (
        [bars.DownloadColumn(binary_units=True), bars.TransferSpeedColumn()]
        if is_bytes
        else [bars.MofNCompleteColumn()]
    )
    bar = bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=None),
        *counts,
        bars.TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
