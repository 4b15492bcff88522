"""The program that runs on the cluster: calls one function of this code, and sends its result or error to Dagster.

It prints nothing and gets no secrets as arguments. The function is called as `function(report, **arguments)`, where
`report` takes a line for the run's log, and returns what JSON can hold.
"""

import _thread
import importlib
import importlib.metadata
import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping
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

from resources.databricks.code import DISTRIBUTION
from smalti.storage.redact import detect_secrets, redact

_REFERENCE = re.compile(r"\{\{secrets/([^/{}]+)/([^/{}]+)\}\}")
_PAUSES = (1.0, 2.0, 4.0)  # before a chunk of messages is written again
_GRACE_SECONDS = 60.0  # between the interrupt and the end of a process that has lost its lease


class RemoteError(Exception):
    """An error of the function, without secrets: it is shown on Databricks too."""


def main() -> None:
    """Run what the Pipes context says.

    Raises:
        RemoteError: the function failed.
    """
    loader = PipesCliArgsParamsLoader()  # type: ignore[no-untyped-call]
    with open_dagster_pipes(
        context_loader=PipesUnityCatalogVolumesContextLoader(), message_writer=_Writer(), params_loader=loader
    ) as pipes:
        done, seconds = threading.Event(), float(pipes.get_extra("lease_seconds"))
        watch = Lease(Path(loader.load_messages_params()["path"]) / "lease", seconds, done)
        threading.Thread(target=watch.run, daemon=True, name="smalti-lease").start()
        outcome = attempt(pipes.extras, pipes.log.info)
        done.set()
        pipes.report_custom_message(outcome)
        if "error" in outcome:
            raise RemoteError(f"{outcome['error']['type']}: {outcome['error']['message']}")


def attempt(extras: Mapping[str, Any], report: Callable[[str], None]) -> dict[str, Any]:
    """Return the result or the error of the function that the extras name, as a message."""
    try:
        return {"result": call(extras, report)}
    except BaseException as error:  # noqa: BLE001  told to Dagster, and the run fails with it
        return {"error": describe(error)}


def call(extras: Mapping[str, Any], report: Callable[[str], None], fetch: Any = None) -> Any:
    """Return what the function gives that the extras of a Pipes context name.

    Args:
        extras: `function`, `arguments`, `environment` and `code`.
        report: takes a line for the log.
        fetch: returns the secret of a scope and a key; Databricks' own by default.

    Raises:
        RuntimeError: the cluster has another version of the code.
        TypeError: the result cannot be written as JSON.
    """
    found = importlib.metadata.version(DISTRIBUTION)
    if found != extras["code"]:
        raise RuntimeError(
            f"the cluster has version {found} of the code, and Dagster {extras['code']}: restart the cluster, or let "
            "every run have a new one"
        )
    os.environ.update(resolve_secrets(extras["environment"], fetch or _fetch_secret))
    module, _, name = str(extras["function"]).partition(":")
    result = getattr(importlib.import_module(module), name)(report, **extras["arguments"])
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
    }


class Lease:
    """Ends this process when Dagster's step has not renewed its lease: it died, and nobody waits for the result."""

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
