"""The program that each rank executes: the built-in trainer or a user's function, as it is sent to processes.

The launchers, which start ranks, are `run_inline` (this process is a rank), `processes` and `spark`; the table of them
is in `config`. Failures of ranks have kinds, by which a launcher finds the one that caused the others.
"""

import base64
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from smalti.errors import StoreError, TrainingError
from smalti.storage.errors import is_transient
from smalti.torch.train.config import OBJECT_TASK, RunConfig, TrainConfig
from smalti.torch.train.ranks import has_lost_rank
from smalti.torch.train.run.events import OnEvent

if TYPE_CHECKING:
    from smalti.torch.train.context import Context
    from smalti.torch.train.trainer.task import Task


@dataclass(frozen=True)
class Program:
    """Work for the ranks of a run. It is sent to other processes as JSON."""

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
        from smalti.torch.train.life import begun_life

        with begun_life(self.config, on_event, meeting_port=meeting_port, scratch=scratch) as life:
            restart = self.restart
            if count := int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):  # torchrun's agent gives no cause
                restart = restart or {"restart": count, "cause": "torchrun started the ranks again"}
            if restart:
                life.events.emit("restart", **restart)
            if isinstance(self.config, TrainConfig):
                from smalti.torch.train.trainer.loop import train_here

                return train_here(self.config, life, self.task).to_json()
            from smalti.torch.train.context import run_function

            if self.function is None:
                raise TrainingError("there is nothing to run: neither a TrainConfig nor a function.")
            return run_function(self.function, self.argument, self.config, life)

    def to_json(self) -> dict[str, Any]:
        """Return the program as JSON values, secrets in the storage options included.

        Functions and classes of `__main__` are included as they are now, others by their name.
        """
        function = None if self.function is None else pickled((self.function, self.argument))
        return {
            "config": self.config.to_json(),
            "function": function,
            "task": None if self.task is None else pickled(self.task),
            "restart": None if self.restart is None else dict(self.restart),
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "Program":
        """Return the program that `to_json` wrote; from trusted sources only, because it unpickles the function."""
        config = config_from_json(obj)
        function, argument = (None, None) if obj["function"] is None else unpickled(obj["function"])
        task = None if obj["task"] is None else unpickled(obj["task"])
        return cls(config, function, argument, restart=obj["restart"], task=task)


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


def config_from_json(obj: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a program that `Program.to_json` wrote; imports nothing of the user's."""
    kind = TrainConfig if obj["function"] is None else RunConfig
    return kind.from_json(obj["config"])


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
