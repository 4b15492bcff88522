"""From an exception that ended a run to the one message that a person needs."""

import dagster as dg

from smalti.errors import SmaltiError


def describe_fault(error: BaseException) -> str:
    """Return what went wrong in a few words; the deepest error that speaks to a person, else the innermost of all."""
    chain = list(_chain(error))
    spoken = [one for one in chain if isinstance(one, SmaltiError | dg.Failure)]
    if spoken:
        first = spoken[0]
        return str(first.description if isinstance(first, dg.Failure) else first)
    innermost = chain[-1]
    if isinstance(innermost, OSError | ValueError):
        return str(innermost)
    return f"{type(innermost).__name__}: {innermost}"


def _chain(error: BaseException) -> "list[BaseException]":
    """The error and what caused it, outermost first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or getattr(current, "user_exception", None)
    return chain
