"""The Spark resource: one session per process, started when it is first asked for and stopped when the step ends.

Also here: the thread that reports how far Spark is; it asks Spark's status tracker every few seconds.
"""

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from smalti_dagster.runs.lifetime import RunBoundResource
from smalti_dagster.runs.signals import held_signals, stopped_by_signals


class ComputeResource(RunBoundResource):
    """The place of Spark: this process and its cluster (`SparkResource`), or a job (`DatabricksResource`)."""


class SparkResource(ComputeResource):
    """The place where Spark runs; a step that never asks for the session starts no Java."""

    master: str = Field(
        default="local[*]", description="local[n], spark://…, yarn, k8s://…, or sc://host:port for Spark Connect."
    )
    driver_memory: str = Field(default="2g", description="Heap of the driver; in local mode it does all the work.")
    conf: dict[str, str] = Field(default={}, description="Further Spark settings; they win.")

    _session: Any = PrivateAttr(default=None)
    _is_ours: bool = PrivateAttr(default=False)
    _tag: str | None = PrivateAttr(default=None)

    @contextlib.contextmanager
    def session(self, report: Callable[[str], None] | None = None) -> Iterator[Any]:
        """Yield the `SparkSession`; while the body runs, `report` gets the progress of Spark's stages.

        On Spark Connect, all that the session asks the server for has the run's id for a tag, and is interrupted there
        when the body is cancelled or fails: the server would continue it.

        Raises:
            dg.Failure: the run was ended meanwhile.
            SmaltiError: what Spark could not do, with what to do about it.
        """
        from smalti.spark import SparkOptions, build_session
        from smalti.spark.tasks import decode_errors

        if self._session is None:
            self._is_ours = not _has_session()
            options = SparkOptions(master=self.master, driver_memory=self.driver_memory, conf=self.conf)
            # Interrupted here, PySpark forgets the Java that it was starting, and that waits for it for ever.
            with held_signals():
                self._session = build_session(options)
                self._tag_operations()
        try:
            with self._stopped_by_signals(), watch_stages(self._session, report), decode_errors():
                yield self._session
        except BaseException:
            self._interrupt()
            raise
        self.refuse_if_over()

    @contextlib.contextmanager
    def lazy_session(self, report: Callable[[str], None] | None = None) -> Iterator[Callable[[], Any]]:
        """Yield a function that returns the session, as `session` does; it is started when that is called first.

        Raises:
            dg.Failure: the run was ended meanwhile.
        """
        with contextlib.ExitStack() as stack:
            yield functools.cache(lambda: stack.enter_context(self.session(report)))
        self.refuse_if_over()

    def _stopped_by_signals(self) -> contextlib.AbstractContextManager[None]:
        """Cancel Spark's jobs when the run is cancelled, and end Java if that does not help; of our own session."""
        if not self._is_ours or self._is_connect():
            return contextlib.nullcontext()
        context = self._session.sparkContext

        def end_java() -> None:
            context._gateway.proc.kill()  # PySpark's only reference to it

        return stopped_by_signals(context.cancelAllJobs, end_java)

    def _tag_operations(self) -> None:
        context = self._context
        if hasattr(self._session, "addTag") and self._is_connect() and context is not None and context.run is not None:
            self._tag = context.run.run_id
            self._session.addTag(self._tag)

    def _is_connect(self) -> bool:
        return ".connect." in type(self._session).__module__

    def _interrupt(self) -> None:
        """End what the server still does for this run, as far as possible: what raised before counts."""
        if self._tag is not None:
            with contextlib.suppress(Exception):
                self._session.interruptTag(self._tag)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session, also when the step failed or was cancelled: else a JVM or a server's job continues."""
        super().teardown_after_execution(context)
        if self._session is not None and self._is_ours:
            self._session.stop()
        elif self._session is not None and self._tag is not None:
            self._session.removeTag(self._tag)
        self._session = self._tag = None


def _has_session() -> bool:
    """Return whether this process has a session already, or is on Databricks: then it is not ours to stop."""
    if os.environ.get("DATABRICKS_RUNTIME_VERSION"):
        return True
    module, core = sys.modules.get("pyspark.sql"), sys.modules.get("pyspark")
    if module is not None and module.SparkSession.getActiveSession() is not None:
        return True
    # A session of another thread is not active here, and a new one would share its context, and end it.
    return getattr(getattr(core, "SparkContext", None), "_active_spark_context", None) is not None


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
