"""The entry points of training, and the program that each rank executes: the built-in trainer, or a user's function.

The launchers, which start ranks, are `run_inline` (this process is a rank), `processes` and `spark`; the table of them
is in `config`.
"""

import base64
import importlib
import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from smalti.errors import TrainingError, WorldMismatch
from smalti.torch.train.config import LAUNCHERS, RunConfig, TrainConfig, TrainResult
from smalti.torch.train.launchers.preflight import check_places
from smalti.torch.train.run.events import OnEvent
from smalti.torch.train.tracking.tracked import tracked
from smalti.world import detect_world

if TYPE_CHECKING:
    from smalti.torch.train.context import Context


@dataclass(frozen=True)
class Program:
    """Work for the ranks of a run. It is sent to other processes as JSON."""

    config: RunConfig
    """That of the built-in trainer is a `TrainConfig`."""
    function: "Callable[[Context], Any] | None" = None
    """Called on each rank; None: the built-in trainer."""
    argument: Any = None
    """The context's `config`."""

    @property
    def source_of(self) -> str:
        """`module:function` whose Python files the ranks need, if they cannot import it: the model, or the function."""
        if isinstance(self.config, TrainConfig):
            return self.config.model
        return f"{getattr(self.function, '__module__', '')}:{getattr(self.function, '__qualname__', '')}"

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
        from smalti.torch.train.life import begun_life

        with begun_life(self.config, on_event, meeting_port=meeting_port, scratch=scratch) as life:
            if isinstance(self.config, TrainConfig):
                from smalti.torch.train.loop import train_here

                return train_here(self.config, life).to_json()
            from smalti.torch.train.context import run_function

            if self.function is None:
                raise TrainingError("there is nothing to run: neither a TrainConfig nor a function.")
            return run_function(self.function, self.argument, self.config, life)

    def in_one_rank(self, **changes: Any) -> "Program":
        """Return the program as one rank that was started by something else runs it."""
        return replace(self, config=replace(self.config, launcher="inline", num_processes=1, **changes))

    def to_json(self) -> dict[str, Any]:
        """Return the program as JSON values, secrets in the storage options included.

        Functions of `__main__` are included as they are now, others by their name.
        """
        pickled = None
        if self.function is not None:
            buffer = io.BytesIO()
            _Pickler(buffer).dump((self.function, self.argument))
            pickled = base64.b64encode(buffer.getvalue()).decode()
        return {"config": self.config.to_json(), "function": pickled}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "Program":
        """Return the program that `to_json` wrote; from trusted sources only, because it unpickles the function."""
        config = config_from_json(obj)
        if obj["function"] is None:
            return cls(config)
        return cls(config, *cloudpickle.loads(base64.b64decode(obj["function"])))


def train(config: TrainConfig, *, on_event: OnEvent | None = None) -> TrainResult:
    """Train a classifier on a shard set and return the result; blocks until the run is over.

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
    return TrainResult.from_json(run_program(Program(config), on_event))


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
    module_name, _, function_name = launcher.function.partition(":")
    start: Any = getattr(importlib.import_module(module_name), function_name)
    with tracked(config, program.argument, on_event) as hear:
        result: dict[str, Any] = start(program, hear)
    return result


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles modules of torch's own kinds by name, as all modules are.

    cloudpickle includes the modules whose names stand in a function: `torch.distributed.config` in one that mentions
    `torch.distributed` and `context.config`. It only knows plain modules.
    """

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not ModuleType and isinstance(value, ModuleType) and value.__name__ in sys.modules:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def config_from_json(obj: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a program that `Program.to_json` wrote; imports nothing of the user's."""
    kind = TrainConfig if obj["function"] is None else RunConfig
    return kind.from_json(obj["config"])


def run_inline(program: Program, on_event: OnEvent | None = None) -> dict[str, Any]:
    """Run in this process, as the rank that the environment names or the only one."""
    return program.run(on_event)
