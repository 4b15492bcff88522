"""Progress bars on stderr, where it is a terminal and the output is not JSON."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from smalti.cli.options import Output

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
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = [DownloadColumn(binary_units=True), TransferSpeedColumn()] if is_bytes else [MofNCompleteColumn()]
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        *counts,
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
