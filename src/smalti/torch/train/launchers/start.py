"""Starting a run, `train` for the built-in trainer and `launch` for a function of the user's, and starting it again.

A run whose ranks failed is started again, from its newest checkpoint, as often as its budget allows.

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

import logging
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smalti.errors import SmaltiError, StoreError, TrainingError, WorldMismatch
from smalti.redaction import HELP_PAGE
from smalti.storage.errors import is_transient
from smalti.torch.train.config import LAUNCHERS, RunConfig, TrainConfig, find_named
from smalti.torch.train.launchers.preflight import check_places
from smalti.torch.train.launchers.program import LOST, OUTAGE, OWN, STOPPED, SUPERSEDED, Program
from smalti.torch.train.result import TrainResult
from smalti.torch.train.run.events import OnEvent
from smalti.torch.train.run.store import newest_checkpoint
from smalti.torch.train.tracking.tracked import tracked
from smalti.world import detect_world

if TYPE_CHECKING:
    from smalti.torch.train.context import Context
    from smalti.torch.train.trainer.task import Task

_log = logging.getLogger("smalti.train")


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
        from smalti.torch.train.trainer.task import name_of

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
            facts = _facts(error, restarts, config, processes, newest)
            _log.warning("restart %d of %d: %s", restarts, config.max_restarts, facts["cause"].splitlines()[0])
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


def _facts(error: SmaltiError, restarts: int, config: RunConfig, processes: int, newest: str | None) -> dict[str, Any]:
    return {
        "restart": restarts,
        "max_restarts": config.max_restarts,
        "num_processes": processes,
        "rank": error.facts.get("rank"),
        "failure": error.facts.get("kind", OWN),
        "cause": str(error)[:_CAUSE_CHARS],
        "newest": newest,
    }
