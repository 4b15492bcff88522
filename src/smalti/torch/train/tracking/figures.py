"""The figures of an event, by the names under which TensorBoard and MLflow show them. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from smalti.torch.train.run.events import Event

_PREFIXES = {"step": "step/", "epoch": "epoch/"}
_COUNTERS = frozenset({"step", "epoch", "life", "time"})  # places of an event, not figures of it


def figures_of(event: Event) -> dict[str, float]:
    """Return the numbers of a step, an epoch or a report; those of a report have the names that the function gave."""
    kind = event["event"]
    if kind == "report":
        return {**_numbers(event["metrics"]), **_numbers(event.get("measures", {}), "step/")}
    if kind not in _PREFIXES:
        return {}
    prefix = _PREFIXES[kind]
    facts = {name: value for name, value in event.items() if name not in _COUNTERS}
    trained = {f"train_{name}": value for name, value in event.get("train_metrics", {}).items()}
    return _numbers({**facts, **trained, **event.get("metrics", {})}, prefix)


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers among some values; a text such as "inf" is one, as JSON has no infinities."""
    found = {}
    for name, value in values.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[prefix + name] = float(value)
        elif value in ("nan", "inf", "-inf"):
            found[prefix + name] = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[value]
    return found
