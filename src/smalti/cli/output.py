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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from smalti.cli.faults import OutputLost
from smalti.cli.options import Output
from smalti.texts import byte_count, printable

_NOT_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that `json.dumps` leaves as they are, and that change a terminal or are no text."""


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


def write_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    only_piped: Collection[str] = (),
) -> None:
    """Write a table; numbers have separators of thousands.

    Args:
        titles: Headings of the columns.
        rows: Values; None is an empty cell.
        numbers: Headings of the columns that stand at the right; of several columns with one heading, the first.
        only_piped: Headings of columns that a terminal of 80 columns has no room for.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return
    shown = [printable(title) for title in titles]
    right = {titles.index(title) for title in numbers}
    if not sys.stdout.isatty():
        cells.insert(0, shown)
        widths = [max(len(row[at]) for row in cells) for at in range(len(titles))]
        for row in cells:
            padded = (
                text.rjust(width) if at in right else text.ljust(width)
                for at, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            write("  ".join(padded).rstrip())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    places = [at for at, title in enumerate(titles) if title not in only_piped]
    for at in places:
        is_right = at in right
        table.add_column(Text(shown[at]), justify="right" if is_right else "left", overflow="fold", no_wrap=is_right)
    for row in cells:
        table.add_row(*(Text(row[at]) for at in places))
    console = Console(highlight=False)
    with console.capture() as text:
        console.print(table)
    write(text.get().rstrip("\n"))


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
