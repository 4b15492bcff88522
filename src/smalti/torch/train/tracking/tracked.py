"""The records of a run that its configuration asks for, joined to the function that takes its events."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from smalti.errors import TrainingError
from smalti.redaction import redact_value
from smalti.torch.train.config import RunConfig, TrainConfig
from smalti.torch.train.run.events import Event, OnEvent


class Tracker(Protocol):
    """A record of a run."""

    @property
    def link(self) -> str | None:
        """Address at which the record can be seen; None while there is none."""

    def __call__(self, event: Event) -> None:
        """Take an event of the run; does not raise."""

    def close(self, outcome: str) -> None:
        """Complete the record: the run has `finished`, `failed`, or was `stopped`."""


@contextlib.contextmanager
def tracked(config: RunConfig, argument: Any, on_event: OnEvent | None) -> Iterator[OnEvent | None]:
    """Yield a function that takes the events of a run for all its records and for `on_event`.

    `on_event` gets an event more for each record with an address: {"event": "tracking", "name": "mlflow", "link": ...}.

    Args:
        config: of the run.
        argument: the `config` of the function that runs, recorded as parameters.
        on_event: the caller's own.

    Raises:
        MissingDependency: a record needs a package that is not installed.
    """
    trackers = _trackers(config, argument)
    if not trackers:
        yield on_event
        return
    linked: set[str] = set()

    def link() -> None:
        for name, tracker in trackers.items():
            if tracker.link is not None and name not in linked and on_event is not None:
                linked.add(name)
                on_event({"event": "tracking", "name": name, "link": tracker.link})

    def hear(event: Event) -> None:
        for tracker in trackers.values():
            tracker(event)
        if on_event is not None:
            on_event(event)
            link()

    outcome = "stopped"
    try:
        yield hear
        outcome = "finished"
    except Exception as error:
        is_stopped = isinstance(error, TrainingError) and error.facts.get("stopped")
        outcome = "stopped" if is_stopped else "failed"
        raise
    finally:
        for tracker in trackers.values():
            tracker.close(outcome)
        if outcome == "finished":
            link()


def _trackers(config: RunConfig, argument: Any) -> dict[str, Tracker]:
    trackers: dict[str, Tracker] = {}
    if config.tensorboard:
        from smalti.torch.train.tracking.event_files import EventFiles

        trackers["tensorboard"] = EventFiles(config)
    if config.mlflow:
        from smalti.torch.train.tracking.mlflow_run import MlflowRun

        trackers["mlflow"] = MlflowRun(config, _parameters(config, argument))
    if config.progress is not False and sys.stderr is not None:
        from smalti.torch.train.tracking.progress import Progress

        epochs = config.epochs if isinstance(config, TrainConfig) else None
        trackers["progress"] = Progress(epochs=epochs, is_brief=config.progress is None)
    return trackers


def _parameters(config: RunConfig, argument: Any) -> dict[str, Any]:
    """Return what a run was configured with, without secrets: of a function, also its own `config`."""
    public = config.public_json()
    if isinstance(config, TrainConfig) or argument is None:
        return public
    if dataclasses.is_dataclass(argument) and not isinstance(argument, type):
        argument = dataclasses.asdict(argument)
    own = argument if isinstance(argument, Mapping) else {"config": argument}
    return {**{f"run.{name}": value for name, value in public.items()}, **_jsonable(own), "data": public["data"]}


def _jsonable(values: Mapping[Any, Any]) -> dict[str, Any]:
    plain = (str, int, float, bool, type(None))
    return {
        str(name): _jsonable(value)
        if isinstance(value, Mapping)
        else redact_value(str(name), value if isinstance(value, plain) else repr(value))
        for name, value in values.items()
    }
