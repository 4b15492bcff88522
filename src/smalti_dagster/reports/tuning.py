"""Pictures and tables of a study of hyperparameters; see `smalti_dagster.reports.pictures` on the UI's limits."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from smalti.inspection.distributions import COLOURS, escape, shortened
from smalti_dagster.reports.pictures import markdown_picture
from smalti_dagster.reports.shown import Metadata
from smalti_dagster.reports.tables import Value, table

MAX_DRAWN = 300
"""Trials that a picture has at most: the newest."""

_STATES = {"complete": COLOURS[0], "pruned": "#999", "failed": COLOURS[1]}
_WIDTH, _HEIGHT, _LEFT = 640, 220, 60
_BAR = 22
_MAX_AXES = 8

_OBSERVE_SECONDS = 30.0  # between two observations of a study

Trial = Mapping[str, Any]
"""A trial as `smalti.torch.tuning.Trial` describes it."""


class StudyReport:
    """Takes the events of a study: a line for each trial, and an observation with the trials so far now and then."""

    def __init__(
        self,
        say: Callable[[str], None],
        observe: Callable[[dict[str, Any]], None],
        *,
        metric: str,
        direction: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._observe, self._clock = say, observe, clock
        self._metric, self._direction = metric, direction
        self._trials: list[dict[str, Any]] = []
        self._last = clock()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Handle one event."""
        values = ", ".join(f"{name} {_short(each)}" for name, each in event["params"].items())
        if event["state"] == "running":
            self._say(f"trial {event['number']} begins: {values}")
            return
        figure = "" if event["value"] is None else f", {self._metric} {event['value']:.5g}"
        reason = f": {event['failure']}" if event["failure"] else ""
        self._say(f"trial {event['number']} is {event['state']}{figure}{reason}")
        self._trials.append({"seconds": 0.0, **event})
        if self._clock() - self._last >= _OBSERVE_SECONDS:
            self._last = self._clock()
            ordered = sorted(self._trials, key=lambda each: _rank(each, self._direction))
            picture = history_picture(self._trials, self._metric, self._direction)
            self._observe(
                {
                    "trials_table": table([_row(each, self._metric) for each in ordered]),
                    "history": dg.MetadataValue.md(picture),
                }
            )


def show_study(found: Mapping[str, Any]) -> Metadata:
    """Return the trials of a study as a table and pictures, and its best configuration.

    Args:
        found: `StudyResult.to_json()`.
    """
    trials, best = [each for each in found["trials"] if each["state"] != "running"], found["best"]
    shown: Metadata = {
        "trials": len(trials),
        **{f"{state}_trials": sum(each["state"] == state for each in trials) for state in _STATES},
    }
    if best is not None:
        shown |= {
            f"best_{found['metric']}": float(best["value"]),
            "best_configuration": dg.MetadataValue.json(dict(best["params"])),
            "best_trial": int(best["number"]),
            "best_run": dg.MetadataValue.path(best["run_dir"]),
        }
    if trials:
        ordered = sorted(trials, key=lambda each: _rank(each, found["direction"]))
        shown["trials_table"] = table([_row(each, found["metric"]) for each in ordered])
        shown["history"] = dg.MetadataValue.md(history_picture(trials, found["metric"], found["direction"]))
        shown["parallel_coordinates"] = dg.MetadataValue.md(coordinates_picture(trials, found["metric"]))
    if found["importances"]:
        shown["importances"] = dg.MetadataValue.md(importances_picture(found["importances"]))
    return shown


def _rank(trial: Trial, direction: str) -> tuple[int, float, int]:
    sign = -1.0 if direction == "maximize" else 1.0
    is_complete = trial["state"] == "complete" and trial["value"] is not None
    return (0 if is_complete else 1, sign * float(trial["value"] or 0.0), trial["number"])


def _row(trial: Trial, metric: str) -> dict[str, Value]:
    value = trial["value"]
    return {
        "trial": trial["number"],
        "state": trial["state"],
        metric: "" if value is None else f"{value:.5g}",
        "hyperparameters": ", ".join(f"{name} {_short(each)}" for name, each in trial["params"].items()),
        "seconds": round(float(trial["seconds"]), 1),
        "failure": shortened(str(trial["failure"]).strip().rpartition("\n")[2], 200),
    }


def history_picture(trials: Sequence[Trial], metric: str, direction: str) -> str:
    """Return the figure of each trial in order, and the best so far as a line."""
    drawn = [each for each in trials if _is_number(each["value"])][-MAX_DRAWN:]
    if not drawn:
        return "no trial has a figure"
    values = [float(each["value"]) for each in drawn]
    low, high = _range(values)
    left, right, top, base = _LEFT, _WIDTH - 12, 28, _HEIGHT - 30

    def place(at: int, value: float) -> tuple[float, float]:
        x = left + (right - left) * (at + 0.5) / len(drawn)
        return x, base - (base - top) * (value - low) / (high - low)

    best, line, dots = None, "", ""
    pick = max if direction == "maximize" else min
    for at, each in enumerate(drawn):
        x, y = place(at, values[at])
        dots += f"<circle cx='{x:.0f}' cy='{y:.0f}' r='3' fill='{_STATES.get(each['state'], '#999')}'/>"
        if each["state"] == "complete":
            best = values[at] if best is None else pick(best, values[at])
            line += f"{x:.0f},{place(at, best)[1]:.0f} "
    return _picture(
        f"<text x='{left}' y='18' font-weight='bold'>{escape(metric)} by trial; line: best so far, grey: pruned</text>"
        f"<path d='M{left} {top}V{base}H{right}' stroke='#999' fill='none'/>"
        f"<text x='{left - 4}' y='{top + 5}' text-anchor='end'>{high:.4g}</text>"
        f"<text x='{left - 4}' y='{base}' text-anchor='end'>{low:.4g}</text>"
        f"<text x='{left}' y='{base + 18}'>{drawn[0]['number']}</text>"
        f"<text x='{right}' y='{base + 18}' text-anchor='end'>{drawn[-1]['number']}</text>"
        f"<polyline points='{line}' stroke='{COLOURS[2]}' fill='none'/>{dots}",
        _HEIGHT,
        "history",
    )


def importances_picture(importances: Mapping[str, float]) -> str:
    """Return the share of each hyperparameter in the differences between trials, as bars."""
    ordered = sorted(importances.items(), key=lambda each: -each[1])
    bars = "".join(
        f"<text x='190' y='{28 + at * _BAR + 13}' text-anchor='end'>{escape(shortened(name, 28))}</text>"
        f"<rect x='196' y='{28 + at * _BAR}' width='{380 * share:.0f}' height='16' fill='{COLOURS[0]}'/>"
        f"<text x='{200 + 380 * share:.0f}' y='{28 + at * _BAR + 13}'>{share:.0%}</text>"
        for at, (name, share) in enumerate(ordered)
    )
    title = "<text x='10' y='18' font-weight='bold'>importance of the hyperparameters</text>"
    return _picture(title + bars, 36 + _BAR * len(ordered), "importances")


def coordinates_picture(trials: Sequence[Trial], metric: str) -> str:
    """Return a line for each complete trial through its values, on an axis for each hyperparameter and the figure."""
    drawn = [each for each in trials if each["state"] == "complete" and _is_number(each["value"])][-MAX_DRAWN:]
    if not drawn:
        return "no trial is complete"
    names = sorted({name for each in drawn for name in each["params"]})[:_MAX_AXES]
    columns = {name: [each["params"].get(name) for each in drawn] for name in names}
    axes = [(name, *_axis(values)) for name, values in columns.items()]
    axes.append((metric, *_axis([float(each["value"]) for each in drawn])))
    step, top, base = (_WIDTH - 120) / max(len(axes) - 1, 1), 44, _HEIGHT - 24
    body = "<text x='10' y='16' font-weight='bold'>complete trials; darker: higher figure</text>"
    shares = axes[-1][1]
    for at in sorted(range(len(drawn)), key=lambda each: shares[each]):
        points = " ".join(
            f"{60 + number * step:.0f},{base - (base - top) * axis[1][at]:.0f}" for number, axis in enumerate(axes)
        )
        opacity = 0.15 + 0.75 * shares[at]
        body += f"<polyline points='{points}' stroke='{COLOURS[0]}' stroke-opacity='{opacity:.2f}' fill='none'/>"
    for number, (name, _, low, high) in enumerate(axes):
        x = 60 + number * step
        body += (
            f"<path d='M{x:.0f} {top}V{base}' stroke='#555'/>"
            f"<text x='{x:.0f}' y='34' text-anchor='middle'>{escape(shortened(name, 16))}: {escape(high)}</text>"
            f"<text x='{x:.0f}' y='{base + 16}' text-anchor='middle'>{escape(low)}</text>"
        )
    return _picture(body, _HEIGHT, "parallel coordinates")


def _axis(values: Sequence[Any]) -> tuple[list[float], str, str]:
    """Return the places of values on an axis, in [0, 1], and the texts of its ends; logarithmic over two decades."""
    if not all(_is_number(value) for value in values):
        texts = sorted({str(value) for value in values})
        places = {text: at / max(len(texts) - 1, 1) for at, text in enumerate(texts)}
        return [places[str(value)] for value in values], shortened(texts[0], 12), shortened(texts[-1], 12)
    numbers = [float(value) for value in values]
    ends = f"{min(numbers):.3g}", f"{max(numbers):.3g}"
    if min(numbers) > 0 and max(numbers) / min(numbers) >= 100:
        numbers = [math.log(number) for number in numbers]
    low, high = _range(numbers)
    return [(number - low) / (high - low) for number in numbers], *ends


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _picture(body: str, height: float, alt: str) -> str:
    return markdown_picture(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height:.0f}' font-family='sans-serif' "
        f"font-size='12'><rect width='100%' height='100%' fill='white'/>{body}</svg>",
        alt,
    )
