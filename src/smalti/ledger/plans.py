"""What the check needs of an order: the sample ids at some positions."""

from collections.abc import Callable
from typing import Protocol

from smalti.cursor import Cursor
from smalti.errors import CursorError
from smalti.ledger.lives import PassSpan
from smalti.ledger.sums import Ids

_KEPT = 3  # an epoch's plan holds its windows


class Plan(Protocol):
    """An epoch's order, such as `smalti.order.plan_epoch` gives it."""

    def ids_at(self, positions: Ids, /) -> Ids:
        """Sample ids at these positions."""

    def __len__(self) -> int:
        """Positions of the epoch."""


class Plans:
    """The plans of a run's passes, made when first asked for."""

    def __init__(self, make: Callable[[Cursor], Plan] | None) -> None:
        self._make = make
        self._made: dict[tuple[int, int], Plan] = {}

    def of(self, span: PassSpan) -> Plan | None:
        """The order of a pass.

        None if nobody knows it, or if it was planned for a world, which a cursor does not hold.

        Raises:
            CursorError: it has not as many positions as the ledger says.
        """
        if self._make is None or span.by_sample:
            return None
        key = (span.life, span.number)
        if key not in self._made:
            if len(self._made) >= _KEPT:
                self._made.clear()
            self._made[key] = self._checked(self._make(span.start.cursor), span)
        return self._made[key]

    @staticmethod
    def _checked(plan: Plan, span: PassSpan) -> Plan:
        told = span.start.cursor.epoch_size
        if len(plan) != told:
            raise CursorError(
                f"the ledger says that epoch {span.epoch} has {told} samples, and the plan has {len(plan)}: it is the "
                "plan of other data, or the ledger is damaged.",
                epoch_size=told,
                planned=len(plan),
            )
        return plan
