"""Starting a run: `train` for the built-in trainer, `launch` for a function of the user's."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smalti.errors import SmaltiError, WorldMismatch
from smalti.torch.train.config import LAUNCHERS, RunConfig, TrainConfig, TrainResult, find_named
from smalti.torch.train.launchers.preflight import check_places
from smalti.torch.train.launchers.program import Program
from smalti.torch.train.launchers.restarts import run_with_restarts
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

    The task is that of the configuration, by default image classification, or the one that is given; it must pickle.

    A run resumes from the newest checkpoint in `run_dir` that verifies, on any number of processes. A run that is
    finished returns its result again. Call it from the main thread: in other threads SIGTERM cannot stop the run.

    `on_event` is called with each event of the run (see `events`), as it happens, and with the output lines of child
    processes. An exception that it raises ends the run.

    Raises:
        TrainingError: a rank failed; the message names it and holds its last lines. Or the run was stopped; then a
            checkpoint was saved.
        WorldMismatch: the batch does not divide over the processes.
        SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.
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
    """
    return run_program(Program(RunConfig.from_json({"run_dir": run_dir, **options}), function, config), on_event)[
        "value"
    ]


def run_program(program: Program, on_event: OnEvent | None) -> dict[str, Any]:
    """Run a program with the launcher of its configuration, and return the result as JSON values.

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
    start: Any = find_named(launcher.function, field="launcher")
    try:
        with tracked(config, program.argument, on_event) as hear:
            return run_with_restarts(start, program, hear)
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
