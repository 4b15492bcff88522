"""What is asked of a figure, and whether it was met."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A limit for one participant's figure: absolute, or as a multiple of another's figure."""

    limit: float
    of: str | None = None
    """None: `limit` is in the figure's own unit. Else the label of another participant, or `best` for the best peer."""
    is_maximum: bool = False

    def describe(self) -> str:
        """The goal in a few characters, such as `>= 0.8 x solb`."""
        sign = "<=" if self.is_maximum else ">="
        return f"{sign} {short(self.limit)}" + ("" if self.of is None else f" x {self.of}")

    def threshold(self, references: Mapping[str, float]) -> float | None:
        """The limit in the figure's unit; None when what it refers to was not measured."""
        if self.of is None:
            return self.limit
        return self.limit * references[self.of] if self.of in references else None

    def is_met(self, value: float, references: Mapping[str, float]) -> bool | None:
        """Whether `value` meets it; None when that cannot be said."""
        threshold = self.threshold(references)
        if threshold is None:
            return None
        return value <= threshold if self.is_maximum else value >= threshold


def at_least(limit: float, of: str | None = None) -> Goal:
    """Not lower than that."""
    return Goal(limit, of)


def at_most(limit: float, of: str | None = None) -> Goal:
    """Not higher than that."""
    return Goal(limit, of, is_maximum=True)


def short(value: float) -> str:
    """Three significant digits with k or M, as in `1.31M`, `46.2k`, `0.021`."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"
