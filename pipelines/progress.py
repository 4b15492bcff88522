"""Progress of a run on a terminal: a Dagster logger that turns the run's events into short lines as they happen."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

Write = Callable[[str], None]


class ProgressHandler(logging.Handler):
    """Writes a banner for each asset, its messages and checks indented below, and its seconds."""

    def __init__(self, stages: Sequence[str], write: Write, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.DEBUG)
        self._stages = {name: number for number, name in enumerate(stages, start=1)}
        self._write = write
        self._clock = clock
        self._begun: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record of the run: a message of an asset, or a Dagster event."""
        facts: Mapping[str, Any] = getattr(record, "dagster_meta", {})
        event: dg.DagsterEvent | None = facts.get("dagster_event")
        if event is not None:
            self._show(event)
        elif record.levelno >= logging.INFO:
            message = str(facts.get("orig_message", record.getMessage()))
            if message in self._stages:  # an op of several assets says when it begins one
                self._begin(message)
            else:
                self._write(f"      {message}")

    def _show(self, event: dg.DagsterEvent) -> None:
        step = (event.step_key or "").replace("__", "/")  # the key of an asset that has an op of its own
        kind = event.event_type
        if kind is dg.DagsterEventType.STEP_START and step in self._stages:
            self._begin(step)
        elif kind is dg.DagsterEventType.ASSET_MATERIALIZATION and event.asset_key is not None:
            self._end(event.asset_key.to_user_string())
        elif kind is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            verdict = "passed" if check.passed else "FAILED"
            self._write(f"      check {check.check_name.replace('_', ' ')}: {verdict}")
            if not check.passed and check.description:
                self._write(f"      {check.description}")

    def _begin(self, stage: str) -> None:
        self._begun[stage] = self._clock()
        self._write(f"[{self._stages[stage]}/{len(self._stages)}] {stage}")

    def _end(self, stage: str) -> None:
        if stage in self._begun:
            self._write(f"      done in {self._clock() - self._begun[stage]:.1f} s")


def progress_logger(stages: Sequence[str], write: Write) -> dg.LoggerDefinition:
    """The logger for a run of these assets, in this order."""

    def make(context: dg.InitLoggerContext) -> logging.Logger:  # noqa: ARG001  Dagster's signature
        # Not from the registry: it is this run's alone, and passes nothing on to other handlers.
        logger = logging.Logger("smalti.progress", logging.DEBUG)  # noqa: LOG001
        logger.addHandler(ProgressHandler(stages, write))
        return logger

    return dg.LoggerDefinition(make, description="Progress for a person at a terminal.")
