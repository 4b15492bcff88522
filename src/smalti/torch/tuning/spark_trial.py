"""A trial as a Spark task, which runs it in child processes; the driver follows the log of the run.

Spark writes what it sends to tasks to a file when it is larger than 1 MiB. So the program and its source files are in a
broadcast, without credentials, and what is sent with the task is small: the credentials, which stay in memory.
"""

import contextlib
import functools
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import cloudpickle

from smalti.errors import MissingDependency, TrainingError
from smalti.process import is_connect, use_driver_python, variables_set
from smalti.storage.schemes import secret_variables, store_variables
from smalti.torch.train.launchers.processes import run_in_processes
from smalti.torch.train.launchers.spark import Broadcasted, importable, options_of, read_source
from smalti.torch.train.launchers.start import Program, pickled, run_program, unpickled
from smalti.torch.train.run.events import OnEvent
from smalti.torch.train.run.store import following_run

if TYPE_CHECKING:
    import pandas as pd

_MAX_TASK_BYTES = 2**20
"""Size of what is sent with a task, from which on Spark writes it to a file."""


@dataclass(frozen=True)
class Carried:
    """Needs of a trial beside its program, which may be secret."""

    options: str = field(repr=False)
    """Storage options, as `options_of` returns them."""
    environment: Mapping[str, str] = field(repr=False)

    @property
    def has_secrets(self) -> bool:
        """True if there are storage options or secret variables."""
        return any(json.loads(self.options).values()) or not secret_variables().isdisjoint(self.environment)


class SparkTask:
    """A trial that is the only task of a Spark job.

    Raises:
        MissingDependency: pyspark is not installed.
        TrainingError: there is no Spark session, or credentials cannot be sent through it.
    """

    def __init__(self, program: Program, environment: Mapping[str, str]) -> None:
        self._session, self._config = _session(), program.config
        self._tag = f"smalti-trial-{uuid.uuid4().hex}"
        carried = Carried(options_of(program.config), {**store_variables(os.environ), **environment})
        self._function, self._release = sent_task(self._session, program, carried)

    def run(self, on_event: OnEvent) -> dict[str, Any]:
        """Run the trial, and return its result.

        Raises:
            TrainingError: it failed.
            Exception: Spark's own, if the task failed or was cancelled.
        """
        try:
            with following_run(self._config, on_event):
                if is_connect(self._session):
                    self._session.addTag(self._tag)
                else:
                    self._session.sparkContext.setJobGroup(self._tag, "a trial of a study")
                [row] = self._session.range(0, 1, 1, 1).mapInPandas(self._function, "outcome string").collect()
        finally:
            with contextlib.suppress(Exception):  # the session may be gone, and with it what was sent
                self._release()
        outcome = json.loads(row["outcome"])
        if outcome["result"] is None:
            raise TrainingError(f"the task failed: {outcome['failure']}")
        result: dict[str, Any] = outcome["result"]
        return result

    def cancel(self) -> None:
        """Cancel the task; Spark ends its Python worker, and with it the trial's processes."""
        if is_connect(self._session):
            self._session.interruptTag(self._tag)
        else:
            self._session.sparkContext.cancelJobGroup(self._tag)


def sent_task(session: Any, program: Program, carried: Carried) -> tuple[Any, Callable[[], None]]:
    """Return the function that runs a trial in a task, and one that removes what was sent before it.

    Raises:
        TrainingError: the session is one of Spark Connect, which has no broadcasts, and Spark would write credentials
            to a file.
    """
    bare = replace(program, config=replace(program.config, storage_options={}, run_storage_options=None))
    work: Any = (pickled(bare), program.source_of, read_source(program.source_of))
    if not is_connect(session):
        work = Broadcasted(session, work)
    task = functools.partial(run_in_task, work=work, carried=carried)
    if isinstance(work, Broadcasted):
        return task, work.destroy
    size = len(cloudpickle.dumps(task))
    if size > _MAX_TASK_BYTES and carried.has_secrets:
        raise TrainingError(
            f"the function of the trials and its source files have {size} bytes, and over Spark Connect at most "
            f"{_MAX_TASK_BYTES} can be sent together with storage options and credentials, as Spark writes more to a "
            "file: install the code on the executors, load large values from a store, give the executors credentials "
            "of their own, or use trials_on='processes'.",
            size=size,
        )
    return task, lambda: None


def run_in_task(
    batches: "Iterable[pd.DataFrame]",
    *,
    work: tuple[str, Sequence[str], Mapping[str, str]],
    carried: Carried,
) -> "Iterator[pd.DataFrame]":
    """Run a trial in a Spark task, and return its outcome as the only row."""
    import pandas as pd

    text, source_of, source = work
    for _ in batches:
        outcome: dict[str, Any] = {"result": None, "failure": ""}
        with variables_set(carried.environment), importable(source_of, source):
            try:
                bare: Program = unpickled(text)
                program = replace(bare, config=replace(bare.config, **json.loads(carried.options)))
                # The driver reads the events in the log of the run.
                outcome["result"] = run_program(program, None, start=run_in_processes)
            except Exception as error:  # noqa: BLE001 - of the user's code too: the trial's failure
                outcome["failure"] = f"{type(error).__name__}: {error}"
        for path in source:  # Spark runs further tasks in this process, whose sources may be others
            sys.modules.pop(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), None)
        yield pd.DataFrame({"outcome": [json.dumps(outcome)]})


def _session() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependency(
            "trials on Spark need pyspark: pip install 'smalti[spark]', or use trials_on='processes'.",
            package="pyspark",
        ) from error
    session = SparkSession.getActiveSession()
    if session is None:
        raise TrainingError("trials_on='spark' found no Spark session: start one, or use trials_on='processes'.")
    use_driver_python(session)
    return session
