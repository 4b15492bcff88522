"""The program that runs on the cluster: calls functions of this code, and sends their results or errors to Dagster.

It prints nothing and gets no secrets as arguments. It takes one call after the other from files of the session's
folder, and ends after the last one, an error, or a file `end`. A function is called as `function(report, **arguments)`,
where `report` takes a line for the run's log, and returns what JSON can hold.
"""

import _thread
import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from dagster_pipes import (
    PipesBufferedFilesystemMessageWriterChannel,
    PipesCliArgsParamsLoader,
    PipesParams,
    PipesUnityCatalogVolumesContextLoader,
    PipesUnityCatalogVolumesMessageWriter,
    open_dagster_pipes,
)

from smalti.redaction import redact
from smalti.storage.errors import is_transient
from smalti.storage.redact import detect_secrets
from smalti_dagster.resources.databricks.code import DISTRIBUTION

_REFERENCE = re.compile(r"\{\{secrets/([^/{}]+)/([^/{}]+)\}\}")
_PAUSES = (1.0, 2.0, 4.0)  # before a chunk of messages is written again
_GRACE_SECONDS = 60.0  # between the interrupt and the end of a process that has lost its lease


class RemoteError(Exception):
    """An error of the function, without secrets: it is shown on Databricks too."""


def main() -> None:
    """Run what Dagster's step asks for.

    Raises:
        RemoteError: a function failed.
    """
    loader = PipesCliArgsParamsLoader()  # type: ignore[no-untyped-call]
    with open_dagster_pipes(
        context_loader=PipesUnityCatalogVolumesContextLoader(), message_writer=_Writer(), params_loader=loader
    ) as pipes:
        done, folder = threading.Event(), Path(loader.load_messages_params()["path"])
        watch = StepLease(folder / "lease", float(pipes.get_extra("lease_seconds")), done)
        threading.Thread(target=watch.run, daemon=True, name="smalti-lease").start()
        try:
            for outcome in serve(folder, pipes.extras, pipes.log.info):
                pipes.report_custom_message(outcome)
                if "error" in outcome:
                    raise RemoteError(f"{outcome['error']['type']}: {outcome['error']['message']}")
        finally:
            done.set()


def serve(folder: Path, extras: Mapping[str, Any], report: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each call in the session's folder, and of a preparation that failed as that of call 0."""

    def say(line: str) -> None:
        report(redact(line, detect_secrets()))

    try:
        prepare(extras)
        number, is_last = 1, False
        while not is_last and (asked := _next_call(folder, number)) is not None:
            yield {"call": number, "result": call(asked["function"], asked["arguments"], say)}
            number, is_last = number + 1, asked["is_last"]
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001  reported to Dagster, and the run fails with it
        yield {"call": 0, "error": describe(error)}


def _next_call(folder: Path, number: int) -> dict[str, Any] | None:
    """Wait for a call, and return it; None when there is none any more. The lease ends the wait if Dagster is gone."""
    while not (folder / "end").exists():
        with contextlib.suppress(OSError, json.JSONDecodeError):  # not there yet, or seen while it is written
            found: dict[str, Any] = json.loads((folder / f"call-{number}.json").read_text())
            return found
        time.sleep(_PAUSES[0])
    return None


def prepare(extras: Mapping[str, Any], fetch: Callable[[str, str], str] | None = None) -> None:
    """Compare the code of this machine with that of Dagster, and set the variables that the extras name.

    Args:
        extras: `environment` and `code`.
        fetch: returns the secret of a scope and a key; Databricks' own by default.

    Raises:
        RuntimeError: the cluster has another version of the code.
    """
    found = importlib.metadata.version(DISTRIBUTION)
    if found != extras["code"]:
        raise RuntimeError(
            f"the cluster has version {found} of the code, and Dagster {extras['code']}: restart the cluster, or let "
            "every run have a new one"
        )
    os.environ.update(resolve_secrets(extras["environment"], fetch or _fetch_secret))


def call(function: str, arguments: Mapping[str, Any], report: Callable[[str], None]) -> Any:
    """Return the result of `module:function`.

    Raises:
        TypeError: it cannot be written as JSON.
    """
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(report, **arguments)
    json.dumps(result)
    return result


def resolve_secrets(environment: Mapping[str, str], fetch: Callable[[str, str], str]) -> dict[str, str]:
    """Return variables with `{{secrets/scope/key}}` replaced by the secret."""
    return {
        name: fetch(*match.groups()) if (match := _REFERENCE.fullmatch(value)) else value
        for name, value in environment.items()
    }


def _fetch_secret(scope: str, key: str) -> str:
    runtime = importlib.import_module("databricks.sdk.runtime")
    return str(runtime.dbutils.secrets.get(scope, key))


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON, without secrets."""
    trace = "".join(traceback.format_exception(error))
    secrets = detect_secrets()
    message = str(getattr(error, "description", None) or error)
    return {
        "type": type(error).__name__,
        "message": redact(message, secrets),
        "traceback": redact(trace, secrets),
        "allow_retries": bool(getattr(error, "allow_retries", True)),
        "is_transient": is_transient(error),
    }


class StepLease:
    """Ends this process when Dagster's step has not renewed its lease: nothing waits for the result."""

    def __init__(
        self, path: Path, seconds: float, done: threading.Event, end: Callable[[threading.Event], None] | None = None
    ) -> None:
        self._path, self._seconds, self._done = path, seconds, done
        self._end = end or _end_process

    def run(self) -> None:
        """Look at the lease until the function has returned; needs no clock of another machine."""
        last, renewed = self._read(), time.monotonic()
        while not self._done.wait(min(10.0, self._seconds / 10)):
            now = self._read()
            if now is not None and now != last:
                last, renewed = now, time.monotonic()
            elif time.monotonic() - renewed > self._seconds:
                self._end(self._done)
                return

    def _read(self) -> str | None:
        try:
            return self._path.read_text()
        except OSError:  # removed with the session, or the mount is away
            return None


def _end_process(done: threading.Event) -> None:
    _thread.interrupt_main()
    if not done.wait(_GRACE_SECONDS):
        os._exit(3)


class _Channel(PipesBufferedFilesystemMessageWriterChannel):
    """Writes chunks of messages into the mounted volume, and tries again when it is away for a moment."""

    def upload_messages_chunk(self, payload: Any, index: int) -> None:
        text = payload.read()
        for pause in _PAUSES:
            if self._put(text, index):
                return
            time.sleep(pause)
        super().upload_messages_chunk(StringIO(text), index)

    def _put(self, text: str, index: int) -> bool:
        try:
            super().upload_messages_chunk(StringIO(text), index)
        except OSError:
            return False
        return True


class _Writer(PipesUnityCatalogVolumesMessageWriter):
    def make_channel(self, params: PipesParams) -> PipesBufferedFilesystemMessageWriterChannel:
        return _Channel(path=str(params["path"]), interval=float(params["interval"]))
