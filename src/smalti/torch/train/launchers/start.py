"""Starting a run, `train` for the built-in trainer and `launch` for a function of the user's, and starting it again.

Each rank executes a `Program`. The launchers, which start ranks, are `run_inline` (this process is a rank), `processes`
and `spark`; the table of them is in `config`. Failures of ranks have kinds, by which a launcher finds the one that
caused the others. A run whose ranks failed is started again, from its newest checkpoint, as often as its budget allows.

Intended behaviour:
1. A rank that was killed, that hangs, that lost others or that a store did not answer uses up one restart.
2. An exception of the program itself does, too, until it comes twice in the same way without a newer checkpoint in
   between. Then restarting does not help, and the rest of the budget is not used. The same holds for a failure of
   the launcher that no rank has recorded.
3. A run that was stopped by a signal, cancelled, or started again elsewhere is never restarted.
4. Failures without a newer checkpoint in between are followed by a growing pause, and from the second on by fewer
   processes, down to `min_processes`. Where Spark has fewer slots than processes, as many as it has are started.
5. The first event of a restarted life is `restart`, with its cause.
6. A store that does not answer this process counts as a failure, too: it is likely not to answer the ranks either.

The agent of torch.distributed.elastic is not used: it counts restarts without asking for progress, restarts stopped
runs and user errors alike, and passes neither a task through a pipe nor output as events. Under torchrun it restarts
the ranks itself, as `--max-restarts` says; each start is then a life of the run as well.
"""

import base64
import importlib
import io
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import cloudpickle

from smalti.errors import SmaltiError, StoreError, TrainingError, WorldMismatch
from smalti.redaction import HELP_PAGE
from smalti.storage.errors import is_transient
from smalti.torch.train.config import LAUNCHERS, OBJECT_TASK, RunConfig, TrainConfig, find_named
from smalti.torch.train.context import Context, run_function
from smalti.torch.train.launchers.preflight import check_places
from smalti.torch.train.life import begun_life
from smalti.torch.train.ranks import has_lost_rank
from smalti.torch.train.result import TrainResult
from smalti.torch.train.run.events import OnEvent
from smalti.torch.train.run.store import newest_checkpoint
from smalti.torch.train.tracking.tracked import tracked
from smalti.torch.train.trainer.loop import train_here
from smalti.torch.train.trainer.task import Task, name_of
from smalti.world import detect_world

_log = logging.getLogger("smalti.train")


@dataclass(frozen=True)
class Program:
    """Work for the ranks of a run. `pickled` makes a text of it, with the secrets in its options."""

    config: RunConfig
    """That of the built-in trainer is a `TrainConfig`."""
    function: "Callable[[Context], Any] | None" = None
    """Called on each rank; None: the built-in trainer."""
    argument: Any = None
    """The context's `config`."""
    restart: Mapping[str, Any] | None = None
    """Facts of the restart that this start is, for the event `restart`."""
    task: "Task | None" = None
    """That of the built-in trainer, if it is given as an object."""

    @property
    def source_of(self) -> tuple[str, ...]:
        """Each `module:name` whose Python files the ranks need, if they cannot import it.

        They are the function, or the task, model, optimiser and schedule. The files beside them are sent with them.
        """
        config, own = self.config, self.function if self.task is None else type(self.task)
        named = [] if own is None else [f"{getattr(own, '__module__', '')}:{getattr(own, '__qualname__', '')}"]
        if isinstance(config, TrainConfig):
            fields = (config.task, config.model, config.optimizer, config.schedule)
            named += [each for each in fields if ":" in each and not each.startswith(OBJECT_TASK)]
        return tuple(named)

    def run(
        self, on_event: OnEvent | None = None, *, meeting_port: int | None = None, scratch: str | None = None
    ) -> dict[str, Any]:
        """Run as one rank; return the result as JSON values, the same on all ranks. Collective.

        Args:
            on_event: called with the events of rank 0.
            meeting_port: port on this machine at which the ranks meet; None: as the environment says.
            scratch: the local folder for files that are put to a store, made by the process that started this one.

        Raises:
            TrainingError: the run was stopped by SIGTERM, another process trains in the same folder, the run was
                started again elsewhere, a rank is gone, or the function's result cannot be stored.
            SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.
        """
        with begun_life(self.config, on_event, meeting_port=meeting_port, scratch=scratch) as life:
            restart = self.restart
            if count := int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):  # torchrun's agent gives no cause
                restart = restart or {"restart": count, "cause": "torchrun started the ranks again"}
            if restart:
                life.events.emit("restart", **restart)
            if isinstance(self.config, TrainConfig):
                return train_here(self.config, life, self.task).to_json()
            if self.function is None:
                raise TrainingError("there is nothing to run: neither a TrainConfig nor a function.")
            return run_function(self.function, self.argument, self.config, life)


def pickled(value: Any) -> str:
    """Return a value as text; functions and classes of `__main__` are included as they are now."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return base64.b64encode(buffer.getvalue()).decode()


def unpickled(text: str) -> Any:
    """Return the value that `pickled` made a text of, in a process of the same user."""
    return cloudpickle.loads(base64.b64decode(text))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles modules of torch's own kinds by name, as all modules are.

    cloudpickle includes the modules whose names stand in a function: `torch.distributed.config` in one that mentions
    `torch.distributed` and `context.config`. It only knows plain modules.
    """

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not ModuleType and isinstance(value, ModuleType) and value.__name__ in sys.modules:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def run_inline(program: Program, on_event: OnEvent | None = None) -> dict[str, Any]:
    """Run in this process, as the rank that the environment names or the only one."""
    return program.run(on_event)


STOPPED, SUPERSEDED, OUTAGE, LOST, OWN = "stopped", "superseded", "outage", "lost", "own"
"""Kinds of failures of a rank: a signal stopped it, it continues elsewhere, a store did not answer, another rank did
not answer, or an exception of its own."""


def kind_of(error: BaseException) -> str:
    """Return the kind of failure that an exception of a rank is."""
    facts = error.facts if isinstance(error, TrainingError) else {}
    if facts.get("stopped"):
        return STOPPED
    if facts.get("is_orphaned"):
        return LOST
    if facts.get("is_superseded"):
        return SUPERSEDED
    if isinstance(error, StoreError) and is_transient(error):
        return OUTAGE
    return LOST if has_lost_rank(error) else OWN


def train(config: TrainConfig, *, task: "Task | None" = None, on_event: OnEvent | None = None) -> TrainResult:
    """Train a model on a shard set and return the result; blocks until the run is over.

    A run resumes from the newest checkpoint in `run_dir` that verifies, on any number of processes. A run that is
    finished returns its result again. Call it from the main thread: in other threads SIGTERM cannot stop the run.

    Args:
        config: The settings of the run.
        task: A task in place of that of the configuration; it must pickle.
        on_event: Called with each event of the run (see docs/training.md), as it happens, and with the output lines of
            child processes. An exception that it raises ends the run.

    Raises:
        TrainingError: a rank failed; the message names it and holds its last lines. Or the run was stopped; then a
            checkpoint was saved.
        WorldMismatch: the batch does not divide over the processes.
        SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.

    Examples:
        >>> config = TrainConfig(data="s3://bucket/photos", run_dir="s3://bucket/runs/8", epochs=1, batch_size=16)
        >>> result = train(config)
        >>> result.steps
        2
    """
    if task is not None:
        config = replace(config, task=name_of(task))
    return TrainResult.from_json(run_program(Program(config, task=task), on_event))


def launch(
    function: "Callable[[Context], Any]",
    config: Any = None,
    *,
    run_dir: str,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Any:
    """Run a training function on every rank of a run, and return what it returns on rank 0; blocks until it is over.

    The function finds the ranks, the data, the newest checkpoint and the means to report in its `Context`, and runs
    unchanged with every launcher. A run that was stopped or killed is started again by the same call.

    Args:
        function: called with a `Context`. Functions of notebooks and scripts, and lambdas, are sent as they are; the
            Python files beside a script are sent to Spark's executors.
        config: the context's `config`. It must pickle, and it is no place for secrets: Spark writes it to files.
        run_dir: path or URL of the folder for checkpoints, metrics and the result.
        on_event: called with each event of the run (see `events`), as it happens, and with the output lines of child
            processes. An exception that it raises ends the run.
        options: further fields of `RunConfig`: `launcher`, `num_processes`, `data`, `storage_options` and others.

    Raises:
        TrainingError: a rank failed; the message names it and holds its last lines. Or the run was stopped, or the
            function returned a value that JSON cannot hold.
        SchemaError: an option is unknown or has a value that is not allowed.

    Examples:
        >>> def count(context):
        ...     loader = context.dataloader("train", batch_size=8)
        ...     return sum(len(batch["label"]) for batch in loader)
        >>> launch(count, data="s3://bucket/photos", run_dir="s3://bucket/runs/8")
        32
    """
    program = Program(RunConfig(run_dir=run_dir, **options), function, config)
    return run_program(program, on_event)["value"]


def run_program(program: Program, on_event: OnEvent | None, *, start: "Start | None" = None) -> dict[str, Any]:
    """Run a program with the launcher of its configuration, and return the result as JSON values.

    Args:
        program: the program.
        on_event: called with the events of the run.
        start: a launcher in place of that of the configuration.

    Raises:
        SmaltiError: as `train` and `launch` do.
    """
    config = program.config
    config.check_ranks(config.num_processes)
    launcher, world = LAUNCHERS[config.launcher], detect_world()
    if launcher.starts_processes and world.num_ranks > 1:
        raise WorldMismatch(
            f"this process is rank {world.rank} of {world.num_ranks} already, as RANK and WORLD_SIZE say, and "
            f"would start {config.num_processes} more: use launcher='inline' under torchrun and the like.",
            num_ranks=world.num_ranks,
        )
    if launcher.starts_processes and config.preflight:
        check_places(config)
    chosen: Any = start or find_named(launcher.function, field="launcher")
    try:
        with tracked(config, program.argument, on_event) as hear:
            return run_with_restarts(chosen, program, hear)
    except KeyboardInterrupt:
        _log.warning("interrupted; %s", _how_to_go_on(config))
        raise


def _how_to_go_on(config: RunConfig) -> str:
    """Return what there is of a run, and how it is continued."""
    try:
        newest = newest_checkpoint(config)
    except SmaltiError as error:
        return f"the checkpoints in {config.run_dir} cannot be read: {error}"
    if newest is None:
        return f"no checkpoint was saved in {config.run_dir}: the next start begins again."
    return f"the newest checkpoint is {newest}: start the run again with the same `run_dir` to resume."


# ------------------------------------------------------------ restarts


_FINAL = (STOPPED, SUPERSEDED)
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds before a restart without progress
_CAUSE_CHARS = 500  # of a failure's text in an event
Start = Callable[[Program, OnEvent | None], dict[str, Any]]


def run_with_restarts(
    start: Start, program: Program, on_event: OnEvent | None, *, pause: Callable[[float], object] = time.sleep
) -> dict[str, Any]:
    """Run a program by a launcher, again after failures as `max_restarts` says, and return the result.

    Args:
        start: the launcher.
        program: the program.
        on_event: called with the events of the run.
        pause: called with the seconds to wait before a restart without progress.

    Raises:
        TrainingError: as the launcher; the message also says how often the run was restarted.
    """
    config = program.config
    if config.max_restarts == 0:
        return start(program, on_event)
    restarts = stuck = 0
    newest, signature = _newest(config, None), ""
    while True:
        try:
            return _started(start, program, on_event)
        except TrainingError as error:
            if "rank" not in error.facts or error.facts.get("kind") in _FINAL:
                raise
            before, newest = newest, _newest(config, newest)
            stuck = stuck + 1 if newest == before else 0
            last, signature = signature, _signature(error)
            if restarts == config.max_restarts:
                raise _explained(error, f"All {restarts} restarts (`max_restarts`) were used.") from error
            # A failure that is likely to come every time.
            kind = error.facts.get("kind", OWN)
            may_repeat = kind == OWN or (kind == LOST and error.facts["rank"] is None)
            if stuck > 0 and restarts > 0 and may_repeat and signature == last:
                raise _explained(
                    error,
                    f"It failed in the same way after restart {restarts}, without a newer checkpoint in between: "
                    f"restarting does not help; {config.max_restarts - restarts} restarts were not used.",
                ) from error
            restarts += 1
            processes = next_processes(config, program.config.num_processes, stuck=stuck)
            cause = str(error)[:_CAUSE_CHARS]
            facts = {
                "restart": restarts,
                "max_restarts": config.max_restarts,
                "num_processes": processes,
                "rank": error.facts.get("rank"),
                "failure": kind,
                "cause": cause,
                "newest": newest,
            }
            _log.warning("restart %d of %d: %s", restarts, config.max_restarts, cause.splitlines()[0])
            program = replace(program, config=replace(program.config, num_processes=processes), restart=facts)
        if stuck:
            pause(min(_FIRST_PAUSE * 2 ** (stuck - 1), _LONGEST_PAUSE))


def _started(start: Start, program: Program, on_event: OnEvent | None) -> dict[str, Any]:
    """Start a program; a store that does not answer this process is the failure of no rank in particular."""
    try:
        return start(program, on_event)
    except StoreError as error:
        if not is_transient(error):
            raise
        raise TrainingError(
            f"the store did not answer the process that starts the ranks: {error}. Start the run again when it does.",
            rank=None,
            kind=OUTAGE,
            is_transient=True,
        ) from error


def _newest(config: RunConfig, known: str | None) -> str | None:
    """Return the address of the newest checkpoint, or the known one while the store does not answer."""
    try:
        return newest_checkpoint(config)
    except StoreError as error:
        if not is_transient(error):
            raise
        _log.warning("the newest checkpoint is not known: %s", error)
        return known


def next_processes(config: RunConfig, current: int, *, stuck: int) -> int:
    """Return the number of processes of the next start, from `min_processes` to `num_processes`.

    Args:
        config: the run, with the number of processes that is wanted.
        current: processes of the start that failed.
        stuck: failures in a row without a newer checkpoint.
    """
    lowest = config.num_processes if config.min_processes is None else config.min_processes
    fitting = [number for number in range(lowest, config.num_processes + 1) if _fits(config, number)]
    wanted = current - 1 if stuck > 1 else current if stuck else config.num_processes
    if (path := LAUNCHERS[config.launcher].free_slots) is not None:
        slots = find_named(path, field="launcher")()
        wanted = wanted if slots is None else min(wanted, slots)
    return max([number for number in fitting if number <= wanted], default=min(fitting, default=current))


def _fits(config: RunConfig, number: int) -> bool:
    """Return whether so many ranks can share a batch that `num_processes` ranks can share."""
    if not isinstance(config, TrainConfig):
        return config.num_processes % number == 0
    try:
        config.check_ranks(number)
    except WorldMismatch:
        return False
    return True


def _signature(error: TrainingError) -> str:
    """Return a text that is equal for failures of one kind: the last line but the address for help, without numbers."""
    lines = str(error.facts.get("output") or error).strip().splitlines()
    telling = [line for line in lines if HELP_PAGE not in line]
    return re.sub(r"0x[0-9a-f]+|\d+", "#", telling[-1] if telling else "")


def _explained(error: TrainingError, text: str) -> TrainingError:
    return TrainingError(f"{error}\n{text}", **error.facts)
