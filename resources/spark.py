"""The Spark resource: one session per process, started when it is first asked for and stopped when the step ends."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from resources.lifetime import RunBoundResource
from resources.signals import held_signals
from resources.spark_progress import watch_stages


class SparkResource(RunBoundResource):
    """Where Spark runs; a step that never asks for the session starts no Java."""

    master: str = Field(
        default="local[*]", description="local[n], spark://…, yarn, k8s://…, or sc://host:port for Spark Connect."
    )
    driver_memory: str = Field(default="2g", description="Heap of the driver; in local mode it does all the work.")
    conf: dict[str, str] = Field(default={}, description="Further Spark settings; they win.")

    _session: Any = PrivateAttr(default=None)
    _is_ours: bool = PrivateAttr(default=False)

    @contextlib.contextmanager
    def session(self, report: Callable[[str], None] | None = None) -> Iterator[Any]:
        """Yield the `SparkSession`; while the body runs, `report` gets the progress of Spark's stages.

        Raises:
            dg.Failure: the run was ended meanwhile.
        """
        from smalti.spark import SparkOptions, build_session

        if self._session is None:
            self._is_ours = not _has_session()
            options = SparkOptions(master=self.master, driver_memory=self.driver_memory, conf=self.conf)
            # Interrupted here, PySpark forgets the Java that it was starting, and that waits for it for ever.
            with held_signals():
                self._session = build_session(options)
        with watch_stages(self._session, report):
            yield self._session
        self.refuse_if_over()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session, also when the step failed or was cancelled: else a JVM or a server's job goes on."""
        super().teardown_after_execution(context)
        if self._session is not None and self._is_ours:
            self._session.stop()
        self._session = None


def _has_session() -> bool:
    """Whether this process has a session already, as in a Databricks notebook; then it is not ours to stop."""
    module = sys.modules.get("pyspark.sql")
    return module is not None and module.SparkSession.getActiveSession() is not None
