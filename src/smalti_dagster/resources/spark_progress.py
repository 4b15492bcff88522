"""Telling a person how far Spark is: a thread that asks Spark's status tracker every few seconds."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

_SECONDS = 3.0  # between two reports; each is a line in the event log


@contextlib.contextmanager
def watch_stages(session: Any, report: Callable[[str], None] | None) -> Iterator[None]:
    """Reports finished tasks of running stages while the body runs; nothing on Spark Connect, which has no tracker."""
    context = getattr(session, "sparkContext", None)
    if report is None or context is None:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_follow, args=(context.statusTracker(), report, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=10.0)


def _follow(tracker: Any, report: Callable[[str], None], done: threading.Event) -> None:
    last = ""
    while not done.wait(_SECONDS):
        text = describe_stages([tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()])
        if text and text != last:
            report(text)
            last = text


def describe_stages(stages: list[Any]) -> str:
    """Return how far the running stages are, such as `Spark: 40 % (12 of 30 tasks)`; empty when nothing runs."""
    running = [stage for stage in stages if stage is not None]  # None: the stage ended in the meantime
    tasks = sum(stage.numTasks for stage in running)
    completed = sum(stage.numCompletedTasks for stage in running)
    return f"Spark: {100 * completed // tasks} % ({completed} of {tasks} tasks)" if tasks else ""
