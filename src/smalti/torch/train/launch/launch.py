"""The entry point of training: starts the ranks of a run with the configured launcher."""

import importlib
from typing import Any

from smalti.errors import WorldMismatch
from smalti.torch.train.config import LAUNCHERS, TrainConfig, TrainResult
from smalti.torch.train.events import OnEvent
from smalti.world import detect_world


def train(config: TrainConfig, *, on_event: OnEvent | None = None) -> TrainResult:
    """Train a classifier on a shard set and return the result; blocks until the run is over.

    A run resumes from the newest checkpoint in `run_dir` that verifies, on any number of processes. A run that is
    finished returns its result again. Call it from the main thread: in other threads SIGTERM cannot stop the run.

    Args:
        config: what to train on, how, and where. `launcher` decides which processes train; see `LAUNCHERS`.
        on_event: called with each event of the run (see events), as it happens, and with the output lines of child
            processes. An exception that it raises ends the run.

    Raises:
        TrainingError: a rank failed; the message names it and holds its last lines. Or the run was stopped; then a
            checkpoint was saved.
        WorldMismatch: the batch does not divide over the processes.
        SmaltiError: the data, the checkpoints or the configuration do not fit; see the classes.
    """
    config.batch_per_rank(config.num_processes)
    launcher, world = LAUNCHERS[config.launcher], detect_world()
    if launcher.starts_processes and world.num_ranks > 1:
        raise WorldMismatch(
            f"this process is rank {world.rank} of {world.num_ranks} already, as RANK and WORLD_SIZE say, and "
            f"would start {config.num_processes} more: use launcher='inline' under torchrun and the like.",
            num_ranks=world.num_ranks,
        )
    module_name, _, function_name = launcher.function.partition(":")
    launch: Any = getattr(importlib.import_module(module_name), function_name)
    result: TrainResult = launch(config, on_event)
    return result
