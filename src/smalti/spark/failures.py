"""Errors of executor tasks, carried home: what a task raises as a `SmaltiError` the driver raises again as the same.

Spark turns a task's exception into the text of another one, on classic sessions and on Spark Connect alike; so the
error's type, message and facts travel inside that text, between two marks.
"""

import base64
import contextlib
import functools
import json
import platform
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from smalti import errors
from smalti.errors import MissingDependency, SmaltiError

_MARK = re.compile(r"<smalti-error:([A-Za-z0-9+/=]+)>")
_MISSING = re.compile(
    r"ModuleNotFoundError: No module named '"
    r"(smalti|brotli|cramjam|fsspec|numpy|pandas|PIL|platformdirs|pyarrow|simplejpeg|xxhash|zstandard)\b"
)
_TOO_OLD = re.compile(
    r"\b(pandas|pyarrow) >= (\S+) must be installed; however, (?:it was not found|your version is (\S+)\.(?!\S))",
    re.IGNORECASE,
)
_VERSIONS = re.compile(r"Python in worker has different version:? (.+?) than that in driver:? ([\d.]+),")
_NO_WORKER = re.compile(r"^Error from python worker:\n(.+?)\nPYTHONPATH was:", re.MULTILINE | re.DOTALL)
_NO_PROGRAM = re.compile(r"Cannot run program \"([^\"]+)\": error=\d+, ([^\n]+)")
_WHEN = "before the session is started; `smalti.spark.build_session()` does so on this machine"
_ADVICE = f"install 'smalti[spark]' on every machine, or set PYSPARK_PYTHON to a Python that has it, {_WHEN}"
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
        original = unpack(text)
        if original is None and not isinstance(error, ImportError):  # that would be of this process
            original = _explain(text)
        if original is None:
            raise
        raise original from error


def _explain(text: str) -> SmaltiError | None:
    """Return the error for a task that failed before any code of ours ran; None for any other failure."""
    if match := _MISSING.search(text):
        return MissingDependency(
            f"the Python of Spark's executors has no module {match[1]!r}: {_ADVICE}", module=match[1]
        )
    if match := _TOO_OLD.search(text):
        name = match[1].lower()
        return MissingDependency(
            f"the Python of Spark's executors needs {name} {match[2]} or later, found {match[3] or 'none'}: {_ADVICE}",
            module=name,
        )
    if match := _VERSIONS.search(text):
        worker = ".".join(re.findall(r"\d+", match[1]))
        return MissingDependency(
            f"Spark's executors run Python {worker} and this program runs {match[2]}; Spark needs the same minor "
            f"version on both: set PYSPARK_PYTHON to a Python {match[2]} that has 'smalti[spark]', {_WHEN}",
            found=worker,
            expected=match[2],
        )
    if match := _NO_PROGRAM.search(text):
        return MissingDependency(
            f"Spark's executors cannot run {match[1]!r} as Python: {match[2]}; {_ADVICE}", program=match[1]
        )
    if match := _NO_WORKER.search(text):
        reason = match[1].splitlines()[-1].strip()
        return MissingDependency(
            f"Spark's executors cannot start a Python worker; their Python may be older than this program's, which is "
            f"{platform.python_version()}: {reason}; {_ADVICE}",
            reason=reason,
        )
    return None


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
