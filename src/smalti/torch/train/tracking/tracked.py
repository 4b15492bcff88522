"""The records of a run that its configuration asks for, joined to the function that takes its events.

Each is called with the events, does not raise, has `link`, the address at which it can be seen, and `close(outcome)`:
the run has `finished`, `failed`, or was `stopped`. Two of them are here: a bar in a terminal, elsewhere a line for each
epoch, and if wanted now and then; and TensorBoard's event files in the folder of a run, one for each life of it.
`tensorboard --logdir <run_dir>/tensorboard` shows them. For a run in a store, the file is written to a temporary folder
and put whole, by a thread of its own, after each epoch and every minute.
"""

import contextlib
import dataclasses
import importlib
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from smalti.errors import MissingDependency, StoreError, TrainingError
from smalti.redaction import redact_value
from smalti.storage import open_store
from smalti.torch.train.config import RunConfig, TrainConfig
from smalti.torch.train.run.events import Event, OnEvent, figures_of

log = logging.getLogger("smalti.train")


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


def _trackers(config: RunConfig, argument: Any) -> dict[str, Any]:
    trackers: dict[str, Any] = {}
    if config.tensorboard:
        trackers["tensorboard"] = EventFiles(config)
    if config.mlflow:
        from smalti.torch.train.tracking.mlflow_run import MlflowRun

        trackers["mlflow"] = MlflowRun(config, _parameters(config, argument))
    if config.progress is not False and sys.stderr is not None:
        trackers["progress"] = Progress(is_brief=config.progress is None)
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


# ------------------------------------------------------------ progress


LINE_SECONDS = 30.0
"""Between two lines where there is no terminal."""


class Progress:
    """Takes the events of a run, and shows step, loss, speed, share of waiting for data, and the remaining time.

    Args:
        is_brief: where there is no terminal, write only a line for each epoch.
        stream: to write to; None: standard error.
        clock: for tests.
    """

    def __init__(
        self,
        *,
        is_brief: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_brief = is_brief
        self._epochs, self._stream, self._clock = 0, stream or sys.stderr, clock
        self._bar: Any = None
        self._total: int | None = None
        self._first: tuple[int, float] | None = None
        self._last_line = clock()
        self._seen: dict[str, float] = {}
        self.link: str | None = None

    def __call__(self, event: Event) -> None:
        """Show one event; those without figures of steps are ignored."""
        kind = event["event"]
        if kind == "start":
            self._begin(event)
        elif kind in {"step", "report"}:
            self._seen.update(_numbers_of(event))
            self._advance(int(event["step"]))
        elif kind == "pass":
            self._seen.update(_numbers_of(event))
            self._say(f"epoch {event['epoch'] + 1}: {_described(self._seen)}")
        elif kind == "epoch":
            self._advance(int(event["step"]))
            of = f" of {self._epochs}" if self._epochs else ""
            others = {name: value for name, value in event.get("metrics", {}).items() if name not in _WORDS}
            others = {name: value for name, value in others.items() if isinstance(value, int | float)}
            figures = [_described(_numbers_of(event)), *(f"{name} {value:.4g}" for name, value in others.items())]
            self._say(f"epoch {event['epoch'] + 1}{of}: {', '.join(figures)}")

    def close(self, outcome: str) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._first is not None and not self._is_brief:
            self._say(f"training {outcome}")

    def _begin(self, event: Event) -> None:
        steps, done = event.get("steps_per_epoch"), int(event["step"])
        self._total = event.get("total_steps")
        if steps and self._total:
            self._epochs = math.ceil(self._total / steps)
        self._first = (done, self._clock())
        if self._bar is not None:
            self._bar.close()
        if self._stream.isatty():
            self._bar = tqdm(
                total=self._total, initial=done, file=self._stream, unit="step", dynamic_ncols=True, desc="training"
            )

    def _advance(self, step: int) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(_described(self._seen), refresh=False)
            self._bar.update(max(0, step - self._bar.n))
            return
        now = self._clock()
        if now - self._last_line >= LINE_SECONDS and not self._is_brief:
            self._last_line = now
            of = f" of {self._total}" if self._total else ""
            remaining = ""
            if self._total is not None and self._first is not None and step > self._first[0]:
                seconds = (now - self._first[1]) * (self._total - step) / (step - self._first[0])
                remaining = f", {tqdm.format_interval(max(0.0, seconds))} left"
            self._say(f"step {step}{of}: {_described(self._seen)}{remaining}")

    def _say(self, line: str) -> None:
        if self._bar is None:
            with contextlib.suppress(OSError, ValueError):  # its reader has ended
                self._stream.write(f"{line}\n")
                self._stream.flush()
        else:
            self._bar.write(line, file=self._stream)


_WORDS = {
    "loss": "loss {:.4g}",
    "accuracy": "accuracy {:.3f}",
    "learning_rate": "rate {:.3g}",
    "images_per_second": "{:.0f} samples/s",
    "samples_per_second": "{:.0f} samples/s",
    "data_fraction": "data {:.0%}",
    "peak_memory_mb": "{:.0f} MB",
}


def _numbers_of(event: Event) -> dict[str, float]:
    values = {**event, **event.get("metrics", {}), **event.get("measures", {})}
    return {name: value for name, value in values.items() if name in _WORDS and isinstance(value, (int, float))}


def _described(figures: dict[str, float]) -> str:
    return ", ".join(_WORDS[name].format(figures[name]) for name in _WORDS if name in figures)


# ------------------------------------------------------------ TensorBoard


FOLDER = "tensorboard"
_PUT_SECONDS = 60.0  # between two puts of a file to a store
_END_SECONDS = 60.0  # longest wait for the last put


class EventFiles:
    """Takes the events of a run, and writes their figures for TensorBoard.

    Raises:
        MissingDependency: TensorBoard is not installed.
    """

    def __init__(self, config: RunConfig) -> None:
        try:
            importlib.import_module("tensorboard")  # by torch, when the first file is opened
        except ImportError as error:
            raise MissingDependency(
                "`tensorboard=True` needs TensorBoard: pip install 'smalti[tensorboard]'.", package="tensorboard"
            ) from error
        self._config = config
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._folder = Path()
        self._writer: Any = None
        self._putting = ThreadPoolExecutor(1, thread_name_prefix="smalti-tensorboard")
        self._last_put: Future[None] | None = None
        self._put_time = 0.0
        self._failed = False
        self.link: str | None = None
        """Address of the files; None until there are some."""

    def __call__(self, event: Event) -> None:
        """Write the figures of an event."""
        if self._failed:
            return
        try:
            if event["event"] == "start":
                self._open(int(event["step"]))
            if self._writer is None:
                return
            for name, value in figures_of(event).items():
                self._writer.add_scalar(name, value, int(event["step"]), walltime=event["time"])
            if event["event"] == "epoch" or time.monotonic() - self._put_time > _PUT_SECONDS:
                self._publish()
        except (OSError, FutureTimeout) as error:
            self._fail(error)

    def close(self, outcome: str) -> None:  # noqa: ARG002 - as other trackers
        """Complete the files."""
        try:
            if self._writer is not None and not self._failed:
                self._writer.close()
                self._publish(wait=True)
        except (OSError, FutureTimeout) as error:
            self._fail(error)
        finally:
            self._putting.shutdown(wait=False)
            if self._scratch is not None:
                with contextlib.suppress(OSError):
                    self._scratch.cleanup()

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        if self._writer is not None:
            self._writer.close()
        path = self._config.local_run_dir
        if path is None and self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="smalti-tensorboard-", ignore_cleanup_errors=True)
        self._folder = Path(self._scratch.name) if self._scratch is not None else Path(str(path)) / FOLDER
        # Steps that are taken again replace those of earlier lives.
        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1, flush_secs=10)
        self._put_time = time.monotonic()
        self.link = f"{self._config.run_dir.rstrip('/')}/{FOLDER}"

    def _publish(self, *, wait: bool = False) -> None:
        self._put_time = time.monotonic()
        if self._scratch is None:
            return
        if self._last_put is not None and self._last_put.done():
            self._last_put.result()
        if wait or self._last_put is None or self._last_put.done():
            self._writer.flush()
            self._last_put = self._putting.submit(self._put)
        if wait:
            self._last_put.result(timeout=_END_SECONDS)

    def _put(self) -> None:
        store = open_store(self._config.run_dir, self._config.run_dir_options)
        for path in sorted(self._folder.iterdir()):
            store.put_file(f"{FOLDER}/{path.name}", path)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        kind = "the store" if isinstance(error, StoreError) else "the disk"
        log.warning("TensorBoard's files are no longer written, the training continues; %s: %s", kind, error)
