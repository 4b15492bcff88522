"""A job on Databricks that runs the functions of one step, one after the other, on one cluster.

Intended behaviour:
1. The job is submitted with the first function. It gets functions and their arguments as files of the session's folder,
   not as parameters of the job, which are limited to 10,000 bytes and shown to all users who may see the job.
2. After a function that is not the last, the job waits for the next one, or for its end.
3. Whatever raises here cancels the job: an interrupt, an error of the function, a request that fails for long.
4. While this process runs, it renews the lease. Without that the job ends itself, as no process waits for it.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from smalti.errors import StoreError
from smalti.redaction import redact
from smalti_dagster.resources.databricks.jobs import JobRun, Jobs, clean, describe_end
from smalti_dagster.resources.databricks.messages import (
    SessionFolder,
    VolumeContextInjector,
    VolumeMessageReader,
    metadata_of,
    outcome_of,
)
from smalti_dagster.runs.signals import held_signals

PAGE = "databricks_run"
"""In the metadata of what was made there."""

_OUTAGE_SECONDS = 600.0  # for which the workspace may not answer about a run
_END_SECONDS = 60.0  # that a job which was cancelled, or asked to end, has for it
_LINGER_SECONDS = 300.0  # that a job may need to end after its last function
_RENEW_SECONDS = 20.0  # between two renewals of the lease

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Seconds that a job may take."""

    start: float
    """Until it has a cluster."""
    lease: float
    """After which it ends itself when this process has died."""
    poll: float
    """Between two looks at it."""


class OpenJob:
    """A job that was submitted, and the Pipes session with it."""

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        jobs: Jobs,
        folder: SessionFolder,
        limits: Limits,
        extras: Mapping[str, Any],
    ) -> None:
        self._context, self._jobs, self._folder, self._limits = context, jobs, folder, limits
        self._extras = {**extras, "lease_seconds": limits.lease}
        self._run, self._has_started = JobRun(0, ""), False
        self._session: Any = None
        self._calls = 0
        self._closing = contextlib.ExitStack()

    def start(self, settings: Callable[[Mapping[str, str]], Mapping[str, Any]], token: str) -> None:
        """Submit the job.

        Args:
            settings: gives the body of the request for the parameters by which the program finds the session.
            token: a request with the same one is not a second job.

        Raises:
            dg.Failure: the workspace refused it.
        """
        try:
            self._open()
            self._submit(settings(self._session.get_bootstrap_cli_arguments()), token)
        except BaseException:
            self._abandon()
            raise

    def is_of(self, context: dg.AssetExecutionContext) -> bool:
        """Return whether this is the job of the same execution of a step, whose log gets its lines."""
        return self._context.op_execution_context is context.op_execution_context

    def call(self, function: str, arguments: Mapping[str, Any], *, is_last: bool) -> tuple[Any, dict[str, Any]]:
        """Run a function, and return its result and metadata about the run; blocks, and cancels the job on any error.

        Raises:
            dg.Failure: the run got no cluster, failed, was cancelled there or sent no result.
        """
        try:
            self._calls += 1
            call = {"function": function, "arguments": dict(arguments), "is_last": is_last}
            with _failing("cannot write to the volume"):
                self._folder.write(f"call-{self._calls}.json", json.dumps(call))
            outcome = self._wait(is_last=is_last)
            if self._run.is_over:
                self._close()  # all messages have been read then
                outcome = self._outcome()
            result = self._result(outcome, function)
            if is_last:
                self._abandon()
            return result, _metadata(self._run)
        except BaseException:
            self._abandon()
            raise

    def end(self) -> None:
        """Let a job that waits for its next function end; blocks up to a minute."""
        try:
            if self._run.number and not self._run.is_over:
                self._folder.write("end", "")
                self._wait_for_end()
        except OSError as error:
            _log.warning("cannot end run %d on Databricks: %s", self._run.number, clean(str(error)))
        finally:
            self._abandon()

    def _open(self) -> None:
        """Make the session's folder, open the Pipes session and begin to renew the lease."""
        with _failing("cannot write to the volume"):
            self._closing.enter_context(self._folder.open())
        opened = dg.open_pipes_session(
            self._context.op_execution_context,  # of an asset's, Pipes asks for what Dagster has deprecated
            VolumeContextInjector(self._folder),
            VolumeMessageReader(self._folder, interval=self._limits.poll),
            extras=self._extras,
        )
        self._session = self._closing.enter_context(opened)
        self._closing.enter_context(_renewed(self._folder, min(_RENEW_SECONDS, self._limits.lease / 5)))

    def _submit(self, body: Mapping[str, Any], token: str) -> None:
        # An interrupt here would lose the number of the run that was started.
        with _failing("Databricks did not accept the job", allow_retries=False), held_signals():
            self._run = JobRun(self._jobs.submit(body, token=token), "")
        _note(self._context, self._run.number)

    def _wait(self, *, is_last: bool) -> dict[str, Any] | None:
        """Wait for the outcome of a function, and after the last one or an error some time for the end of the run.

        Raises:
            dg.Failure: there is no cluster for a long time, or the workspace does not answer.
        """
        began = answered = time.monotonic()
        told = None
        while True:
            if self._look():
                answered = time.monotonic()
            elif time.monotonic() - answered > _OUTAGE_SECONDS:
                raise dg.Failure(f"Databricks does not answer about run {self._run.number}")
            outcome = self._outcome()
            told = time.monotonic() if told is None and outcome is not None else told
            is_going_on = outcome is not None and "result" in outcome and not is_last
            if self._run.is_over or is_going_on or (told is not None and time.monotonic() - told > _LINGER_SECONDS):
                return outcome
            if not self._has_started and time.monotonic() - began > self._limits.start:
                last = self._run
                raise dg.Failure(
                    f"run {last.number} on Databricks got no cluster within {self._limits.start:g} s ({last.phase}: "
                    f"{last.message or 'no reason given'}); it is cancelled: {last.page}",
                    metadata=_metadata(last),
                )
            time.sleep(self._limits.poll)

    def _look(self) -> bool:
        """Look at the run; return whether the workspace has answered."""
        try:
            run = self._jobs.look(self._run.number)
        except OSError as error:
            self._context.log.warning("cannot ask about run %d: %s", self._run.number, clean(str(error)))
            return False
        if run.phase != self._run.phase:
            self._context.log.info("run %d on Databricks is %s: %s", run.number, run.phase, run.page or run.message)
        self._run, self._has_started = run, self._has_started or not (run.is_waiting or run.is_over)
        return True

    def _outcome(self) -> dict[str, Any] | None:
        return outcome_of(self._session.get_custom_messages(), self._calls)

    def _result(self, outcome: Mapping[str, Any] | None, function: str) -> Any:
        """Return the result of a function.

        Raises:
            dg.Failure: there is none; says why.
            StoreError: there is none because of a fault of a storage that is likely to pass.
        """
        run = self._run
        page = f" ({run.page})" if run.page else ""
        if outcome is not None and "error" in outcome and run.result != "CANCELED":
            error = outcome["error"]
            said = f"{function} failed on Databricks: {error['type']}: {redact(error['message'])}{page}"
            if error.get("is_transient"):
                raise StoreError(said, is_transient=True)
            raise dg.Failure(
                said,
                metadata={**metadata_of(dict(outcome)), **_metadata(run)},
                allow_retries=bool(error.get("allow_retries", True)),
            )
        if run.is_over and not run.is_successful:
            text = self._jobs.error_text(run) if run.result == "FAILED" and self._has_started else ""
            said = f"\n{text}" if text else ""
            raise dg.Failure(
                f"run {run.number} {describe_end(run, has_started=self._has_started)}{page}{said}",
                metadata=_metadata(run),
            )
        if outcome is None:
            raise dg.Failure(
                f"run {run.number} succeeded on Databricks, but its result did not arrive: is the volume mounted and "
                f"writable on the cluster?{page}",
                metadata=_metadata(run),
            )
        return outcome["result"]

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while not self._run.is_over and time.monotonic() < deadline:
            self._run = self._jobs.look(self._run.number)
            time.sleep(min(self._limits.poll, 1.0))

    def _abandon(self) -> None:
        """Cancel the run unless it is over, and close the session, as far as possible: what raised before counts."""
        try:
            if self._run.number and not self._run.is_over:
                self._context.log.info("cancelling run %d on Databricks", self._run.number)
                self._run = cancel(self._jobs, self._run, self._limits.poll)
        finally:
            self._close()

    def _close(self) -> None:
        self._closing.close()


def cancel(jobs: Jobs, run: JobRun, pause: float) -> JobRun:
    """Cancel a run and wait for its end, as far as possible; return it as it was seen last."""
    deadline = time.monotonic() + _END_SECONDS
    asked = False
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if not asked:
                jobs.cancel(run.number)
                asked = True
            run = jobs.look(run.number)
            if run.is_over:
                break
        time.sleep(min(pause, 1.0))
    return run


def end_earlier(context: dg.AssetExecutionContext, jobs: Jobs, pause: float) -> None:
    """Cancel what an earlier attempt of this step has left on the cluster: its process was killed, or lost touch."""
    own, parent = map(context.instance.get_run_by_id, (context.run.run_id, context.run.parent_run_id or ""))
    runs = [own, parent if parent is not None and parent.is_finished else None]
    numbers = {run.tags[_tag(context)] for run in runs if run is not None and _tag(context) in run.tags}
    for number in sorted(map(int, numbers)):
        _end_left(context, jobs, number, pause)


def _end_left(context: dg.AssetExecutionContext, jobs: Jobs, number: int, pause: float) -> None:
    try:
        run = jobs.look(number)
        if not run.is_over:
            context.log.info("cancelling run %d on Databricks, which an earlier attempt has left", number)
            cancel(jobs, run, pause)
    except OSError as error:  # the workspace forgets runs; one that lives ends with its lease
        context.log.warning("cannot ask about run %d of an earlier attempt: %s", number, clean(str(error)))


def _note(context: dg.AssetExecutionContext, number: int) -> None:
    context.instance.add_run_tags(context.run.run_id, {_tag(context): str(number)})


def _tag(context: dg.AssetExecutionContext) -> str:
    """Return the tag of a Dagster run that holds the number of the run on Databricks of a step."""
    return f"smalti/{context.op_execution_context.op.name}.job"


@contextlib.contextmanager
def _failing(what: str, **options: Any) -> Iterator[None]:
    """Turn an error of a request into a `dg.Failure` without secrets."""
    try:
        yield
    except OSError as error:
        raise dg.Failure(f"{what}: {type(error).__name__}: {clean(str(error))}", **options) from None


@contextlib.contextmanager
def _renewed(folder: SessionFolder, pause: float) -> Iterator[None]:
    """Renew the lease while the body runs."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(pause):
            with contextlib.suppress(OSError):  # one of many
                folder.renew_lease()

    thread = threading.Thread(target=renew, name="smalti-databricks-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(pause + _END_SECONDS)


def _metadata(run: JobRun) -> dict[str, Any]:
    return {PAGE: dg.MetadataValue.url(run.page)} if run.page else {}
