"""Marks for suites that a class inherits: what repeats another class runs in `make test-nightly` alone."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest


def nightly_but(*names: str) -> Callable[[type], type]:
    """Return a decorator of a test class that keeps tests of these names; all others that it inherits are nightly."""

    def mark(kind: type) -> type:
        assert all(callable(getattr(kind, name)) for name in names)
        for name in dir(kind):
            if name.startswith("test_") and name not in names:
                setattr(kind, name, pytest.mark.nightly(copied(getattr(kind, name))))
        return kind

    return mark


def few_of(test: Any, first: int, step: int) -> Any:
    """Return a parametrized test with every `step`-th of its cases, from the `first` on; the others are nightly."""
    [cases] = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    names, values = cases.args
    chosen = [
        value if number % step == first else pytest.param(*value, marks=pytest.mark.nightly)
        for number, value in enumerate(values)
    ]
    alone = copied(test)
    alone.pytestmark = [mark for mark in test.pytestmark if mark is not cases]
    return pytest.mark.parametrize(names, chosen, **cases.kwargs)(alone)


def copied(test: Any) -> Any:
    """Return a function that does the same and has marks of its own."""
    copy = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    copy.__dict__.update(test.__dict__)
    copy.__kwdefaults__, copy.__qualname__, copy.__doc__ = test.__kwdefaults__, test.__qualname__, test.__doc__
    return copy
