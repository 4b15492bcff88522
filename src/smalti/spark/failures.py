"""Errors of executor tasks, carried home: what a task raises as a `SmaltiError` the driver raises again as the same.

Spark turns a task's exception into the text of another one, on classic sessions and on Spark Connect alike; so the
error's type, message and facts travel inside that text, between two marks.
"""

import base64
import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from smalti import errors
from smalti.errors import MissingDependency, SmaltiError

_MARK = re.compile(r"<smalti-error:([A-Za-z0-9+/=]+)>")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(smalti|pyarrow|numpy|simplejpeg|PIL)\b")
_MAX_TEXT = 16_000  # characters of one error; Spark Connect cuts longer texts off

Batch = TypeVar("Batch")
Result = TypeVar("Result")


class CarriedError(RuntimeError):
    """A task's error on its way through Spark; `surfaced` turns it back."""


def carried(task: Callable[[Iterator[Batch]], Iterator[Result]]) -> Callable[[Iterator[Batch]], Iterator[Result]]:
    """The task, with every `SmaltiError` that it raises made ready for the journey to the driver."""

    @functools.wraps(task)
    def run(batches: Iterator[Batch]) -> Iterator[Result]:
        try:
            yield from task(batches)
        except SmaltiError as error:
            raise CarriedError(f"{error} {_pack(error)}") from error

    return run


def _pack(error: SmaltiError) -> str:
    facts = {name: value for name, value in error.facts.items() if isinstance(value, str | int | float | bool | None)}
    text = json.dumps([type(error).__name__, error.message[:_MAX_TEXT], facts])
    return f"<smalti-error:{base64.b64encode(text.encode()).decode()}>"


@contextlib.contextmanager
def surfaced() -> Iterator[None]:
    """Run Spark actions inside: an executor's `SmaltiError` comes out as itself, everything else unchanged."""
    try:
        yield
    except Exception as error:
        text = str(error)
        original = unpack(text) or _explain(text)
        if original is None:
            raise
        raise original from error


def _explain(text: str) -> SmaltiError | None:
    """The one failure of a task that happens before any code of ours runs."""
    match = _MISSING.search(text)
    if match is None:
        return None
    return MissingDependency(
        f"the Python of Spark's executors has no module {match.group(1)!r}: install 'smalti[spark]' on every machine, "
        f"or set PYSPARK_PYTHON to a Python that has it, before the session is started",
        module=match.group(1),
    )


def unpack(text: str) -> SmaltiError | None:
    """The error that a task packed into this text, if there is one."""
    match = _MARK.search(text)
    if match is None:
        return None
    name, message, facts = json.loads(base64.b64decode(match.group(1)))
    kind: Any = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, SmaltiError)):
        kind = SmaltiError
    return kind(message, **facts)  # type: ignore[no-any-return]  # kind is a subclass of SmaltiError
