"""DataFrames that this process wrote, by their plans: an equal one is not written again."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wanted:
    """What must be equal for a written DataFrame to be used again."""

    parent: str
    row_group_bytes: int
    codec: str
    dtype: str | None
    keep: bool


@dataclass(frozen=True)
class Plan:
    """A DataFrame's plan, without the DataFrame: what it was computed of can be let go."""

    session: str
    """Plans of different Spark applications cannot be compared."""
    plan: Any
    """On a classic session the analysed plan; with Spark Connect, where it is but a message, the DataFrame."""
    is_connect: bool
    source: Any
    """What is known of the files that it reads: equal plans over files that were changed are not equal."""

    @classmethod
    def of(cls, df: Any, session: str, source: Any) -> "Plan":
        """The plan of a DataFrame."""
        is_connect = not hasattr(df, "_jdf")
        plan = df if is_connect else df._jdf.queryExecution().analyzed()
        return cls(session, plan, is_connect, source)

    def equals(self, other: "Plan") -> bool:
        """Whether Spark knows that both give the same rows."""
        if (self.session, self.is_connect) != (other.session, other.is_connect) or self.source != other.source:
            return False
        same = self.plan.sameSemantics(other.plan) if self.is_connect else self.plan.sameResult(other.plan)
        return bool(same)


@dataclass(frozen=True)
class _Written:
    wanted: Wanted
    plan: Plan
    url: str
    files: frozenset[tuple[str, int]]
    """Names and sizes of what was written."""


_written: list[_Written] = []
_lock = threading.RLock()


def written_once(
    wanted: Wanted, plan: Plan, write: Callable[[], str], files_of: Callable[[str], Iterable[tuple[str, int]]]
) -> str:
    """The folder of an equal DataFrame, if its files are still as they were, or else what `write()` returns.

    Threads take turns, so that of several with equal DataFrames one writes.
    """
    with _lock:
        for each in list(_written):
            if each.wanted == wanted and each.plan.equals(plan):
                if frozenset(files_of(each.url)) == each.files:
                    return each.url
                _written.remove(each)  # somebody removed or changed it
        url = write()
        _written.append(_Written(wanted, plan, url, frozenset(files_of(url))))
        return url


def forget(url: str) -> None:
    """Makes the next equal DataFrame be written again."""
    with _lock:
        _written[:] = [each for each in _written if each.url != url]
