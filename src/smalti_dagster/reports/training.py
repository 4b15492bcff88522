"""Progress of a training run for a person: its curves after each epoch, and a line every few seconds.

Observations have no plain numbers: Dagster would draw those of all runs as one line over time. The numbers of whole
runs are in their materialisations, where one line over the runs says something.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from smalti_dagster.reports.curves import curve_teaser
from smalti_dagster.reports.evaluation import curves_of
from smalti_dagster.reports.tables import MAX_TABLE_ROWS, Value, rounded, table

_SECONDS = 3.0  # between two lines; each is a row in the event log
_OBSERVE_SECONDS = 30.0  # between two observations during an epoch
_FIGURES = {
    "loss": ("loss", "{:.3f}"),
    "images_per_second": ("{samples}/s", "{:.0f}"),
    "samples_per_second": ("samples/s", "{:.0f}"),
    "data_fraction": ("waiting for data", "{:.0%}"),
    "learning_rate": ("learning rate", "{:.3g}"),
    "peak_memory_mb": ("memory, MB", "{:.0f}"),
    "peak_cuda_memory_mb": ("GPU memory, MB", "{:.0f}"),
}
"""Figures of steps: their titles, and how they are written."""


class TrainingReport:
    """Takes the events of `smalti.torch.train`, and hands on those that a person wants to see."""

    def __init__(
        self,
        say: Callable[[str], None],
        observe: Callable[[dict[str, Any]], None],
        *,
        epochs: int,
        samples: str = "images",
        run_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._observe = observe
        self._epochs, self._samples = epochs, samples
        self._run_id = run_id
        self._clock = clock
        self._last_line = self._last_observation = clock()
        self._links: dict[str, str] = {}
        self._total_steps = 0
        self._history: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        """Handle one event; other kinds are ignored."""
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def links(self) -> dict[str, Any]:
        """Return where else the run is recorded, as metadata."""
        return {
            name: dg.MetadataValue.url(link) if link.startswith("http") else dg.MetadataValue.path(link)
            for name, link in self._links.items()
        }

    def _on_tracking(self, event: dict[str, Any]) -> None:
        self._links[event["name"]] = event["link"]
        self._say(f"{event['name']}: {event['link']}")

    def _on_start(self, event: dict[str, Any]) -> None:
        self._total_steps = event.get("total_steps", 0)
        if self._total_steps:
            self._epochs = math.ceil(self._total_steps / event["steps_per_epoch"])
        resumed = f", going on after step {event['step']}" if event["step"] else ""
        data = (
            f" on {event['train_samples']} {self._samples} of version {event['version']}" if "version" in event else ""
        )
        self._say(
            f"training{data} on {event['device']}, "
            f"{event['num_ranks']} process{'' if event['num_ranks'] == 1 else 'es'}{resumed}"
        )

    def _on_step(self, event: dict[str, Any]) -> None:
        if not self._total_steps:
            return
        share = event["step"] / self._total_steps
        figures = {name: event[name] for name in _FIGURES if isinstance(event.get(name), int | float)}
        self._show(f"{share:.0%} epoch {event['epoch'] + 1} of {self._epochs}", figures)

    def _on_report(self, event: dict[str, Any]) -> None:
        self._show(f"step {event['step']}", {**event["metrics"], **event.get("measures", {})})

    def _show(self, place: str, figures: Mapping[str, Any]) -> None:
        """Say where the run is, and observe its figures, unless that was done just now."""
        now = self._clock()
        shown = dict(self._written(name, value) for name, value in figures.items())
        if now - self._last_line >= _SECONDS:
            self._last_line = now
            self._say(", ".join([place, *(f"{title} {text}" for title, text in shown.items())]))
        if now - self._last_observation >= _OBSERVE_SECONDS:
            self._last_observation = now
            run = {"run": dg.MetadataValue.dagster_run(self._run_id)} if self._run_id else {}
            self._observe({"progress": place, "step": table([dict(shown)]), **self.links(), **run})

    def _written(self, name: str, value: Any) -> tuple[str, str]:
        """Return the title of a figure and its value as a text; a function's own figures have no title but the name."""
        title, form = _FIGURES.get(name, ("", "{:.4g}"))
        text = form.format(value) if isinstance(value, int | float) else str(value)  # "inf" is a text, as in JSON
        return title.format(samples=self._samples) or name, text

    def _on_epoch(self, event: dict[str, Any]) -> None:
        self._last_line = self._last_observation = self._clock()
        self._history.append(event)
        self._observe(describe_epochs(self._history, of=self._epochs, run_id=self._run_id, samples=self._samples))
        figures = ", ".join(f"{name} {value:.{_digits(name)}}" for name, value in figures_of(event).items())
        self._say(
            f"epoch {event['epoch'] + 1} of {self._epochs}: held-out {figures}, "
            f"loss {event['loss']:.3f}, {event['images_per_second']:.0f} {self._samples}/s"
        )

    def _on_output(self, event: dict[str, Any]) -> None:
        self._say(f"rank {event['rank']}: {event['line']}")


def figures_of(summary: dict[str, Any]) -> dict[str, float]:
    """Return the figures of an epoch beside its loss: of classifiers the accuracy, else those of the task."""
    if "accuracy" in summary:
        return {"accuracy": float(summary["accuracy"])}
    return {name: float(value) for name, value in summary["metrics"].items() if name != "loss"}


def _digits(name: str) -> str:
    return "3f" if name == "accuracy" else "4g"


def describe_epochs(
    history: Sequence[dict[str, Any]], *, of: int, run_id: str, samples: str = "images"
) -> dict[str, Any]:
    """Return the metadata of an observation: the curves of this run so far, and its newest epochs as a table."""
    rows: list[dict[str, Value]] = [
        {
            "epoch": each["epoch"] + 1,
            "training loss": rounded(each["train_loss"]),
            "held-out loss": rounded(each["loss"]),
            **{name: rounded(value) for name, value in figures_of(each).items()},
            f"{samples}/s": round(float(each["images_per_second"]), 1),
        }
        for each in history[-MAX_TABLE_ROWS:]
    ]
    return {
        "progress": f"epoch {history[-1]['epoch'] + 1} of {of}",
        "curves": dg.MetadataValue.md(curve_teaser(curves_of(history))),
        "epochs": table(rows[::-1]),
        **({"run": dg.MetadataValue.dagster_run(run_id)} if run_id else {}),
    }
