"""Events of a run: rank 0 appends JSON lines to a file, which the process that started the run follows.

{"event": "start" | "data" | "step" | "report" | "pass" | "epoch" | "checkpoint" | "end" | "output", "time": seconds
since 1970, ...}. `pass` is an epoch that a loader of a function has read; `report` has the figures of a function, or of
an evaluation within an epoch. For a run with records elsewhere, `on_event` also gets "tracking" (`tracking.tracked`).
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from smalti.errors import TrainingError
from smalti.regular_files import open_regular, read_regular

Event = dict[str, Any]
OnEvent = Callable[[Event], None]

METRICS_FILE = "metrics.jsonl"

_POLL_SECONDS = 0.2  # between two reads of the followed file
_STOP_SECONDS = 10.0  # longest wait for the thread that follows it
_PREFIXES = {"step": "step/", "epoch": "epoch/"}
_COUNTERS = frozenset({"step", "epoch", "life", "time"})  # places of an event, not figures of it


class EventLog:
    """A file of JSON lines to append to. Opening it cuts off an unfinished line that a killed process left.

    Args:
        path: the file; None: what is appended is dropped, as the events of other ranks than the first.
        on_event: called with each line that was appended.

    Raises:
        TrainingError: the file cannot be written; `append` and `emit` raise the same.
    """

    def __init__(self, path: Path | None, on_event: OnEvent | None = None) -> None:
        self._path, self._on_event = path, on_event
        self._descriptor = -1
        if path is None:
            return
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            size = os.fstat(self._descriptor).st_size
            end_of_lines = os.pread(self._descriptor, size, 0).rfind(b"\n") + 1
            if end_of_lines != size:
                os.ftruncate(self._descriptor, end_of_lines)

    def append(self, value: Event) -> None:
        """Append one line. It survives the death of this process, but not a crash of the machine."""
        if self._path is None:
            return
        line = json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with _writing(self._path):
            while line:
                line = line[os.write(self._descriptor, line) :]
        if self._on_event is not None:
            self._on_event(value)

    def emit(self, kind: str, **facts: Any) -> None:
        """Record one event."""
        self.append({"event": kind, "time": round(time.time(), 3), **facts})

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_lines(path: Path, *, advice: str = "Restore the file, or remove that line.") -> list[Event]:
    """Return the complete lines of a log, oldest first; empty if the file does not exist.

    Raises:
        TrainingError: a line is not a JSON object; the message ends with `advice`.
    """
    if not path.exists():
        return []
    data = read_regular(path)
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
    return [_parsed(line, f"{path}, line {number}", advice) for number, line in enumerate(lines, 1)]


def _parsed(line: bytes, where: str, advice: str) -> Event:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise TrainingError(f"{where} is damaged: expected a JSON object, found {line[:80]!r}. {advice}", where=where)
    return value


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{path} cannot be written: {error}; make room or mend the disk, and start the run again.", path=str(path)
        ) from error


class EventTail:
    """A reader of the lines that are added to a run's log after its construction; delivers each once and in order.

    Args:
        log: the file, or a function that returns the bytes of the log from an offset on, none if there is no log. The
            log in a store may be replaced by that of a newer life: an unfinished line at the offset is then skipped.
        on_event: called with each event.
    """

    def __init__(self, log: Path | Callable[[int], bytes], on_event: OnEvent) -> None:
        self._log = log
        self._on_event = on_event
        # The offset is before an unfinished last line: the next life cuts it off and writes in its place.
        self._offset = self._read(0).rfind(b"\n") + 1

    def poll(self) -> int:
        """Deliver the new events and return their number; exceptions of `on_event` propagate."""
        data = self._read(self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        delivered = 0
        for number, line in enumerate(whole.split(b"\n")[:-1]):
            try:
                event = _parsed(line, str(self._log), "Only the trainer may write to it.")
            except TrainingError:
                if number or isinstance(self._log, Path):
                    raise
                continue
            self._on_event(event)
            delivered += 1
        return delivered

    def _read(self, offset: int) -> bytes:
        if not isinstance(self._log, Path):
            return self._log(offset)
        if not self._log.exists():
            return b""
        with open_regular(self._log) as file:
            file.seek(offset)
            return file.read()


@contextlib.contextmanager
def following(
    log: Path | Callable[[int], bytes], on_event: OnEvent | None, *, poll_seconds: float = _POLL_SECONDS
) -> Iterator[None]:
    """Deliver events from a thread while the body blocks, and the remaining ones when it ends.

    An exception of `on_event` stops the delivery and is raised at the end of the body, unless the body raises itself.
    """
    if on_event is None:
        yield
        return
    tail = EventTail(log, on_event)
    done = threading.Event()
    faults: list[BaseException] = []

    def follow() -> None:
        try:
            while not done.wait(poll_seconds):
                tail.poll()
            tail.poll()
        except BaseException as fault:  # noqa: BLE001 - raised by the thread that waits
            faults.append(fault)

    thread = threading.Thread(target=follow, name="smalti-events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_STOP_SECONDS)
    if faults:
        raise faults[0]


def figures_of(event: Event) -> dict[str, float]:
    """Return the figures of a step, an epoch or a report, by the names under which TensorBoard and MLflow show them.

    Those of a report have the names that the function gave.
    """
    kind = event["event"]
    if kind == "report":
        return {**_numbers(event["metrics"]), **_numbers(event.get("measures", {}), "step/")}
    if kind not in _PREFIXES:
        return {}
    prefix = _PREFIXES[kind]
    facts = {name: value for name, value in event.items() if name not in _COUNTERS}
    trained = {f"train_{name}": value for name, value in event.get("train_metrics", {}).items()}
    return _numbers({**facts, **trained, **event.get("metrics", {})}, prefix)


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers among some values; a text such as "inf" is one, as JSON has no infinities."""
    numbers = {}
    for name, value in values.items():
        if (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in ("nan", "inf", "-inf"):
            numbers[prefix + name] = float(value)
    return numbers
