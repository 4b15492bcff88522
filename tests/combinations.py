"""Test parameters of several lists: all their combinations, most of them in `make test-nightly` alone."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def each_value_once(*lists: Sequence[Any]) -> list[Any]:
    """Return every combination as test parameters, of which `make test` runs as few as show each value once.

    Args:
        lists: values, or `pytest.param`, whose ids and marks are kept.
    """
    longest = max(map(len, lists))
    chosen = {tuple(number % len(values) for values in lists) for number in range(longest)}
    combinations = []
    for places in product(*(range(len(values)) for values in lists)):
        params = [_param(values[place]) for values, place in zip(lists, places, strict=True)]
        marks = [mark for param in params for mark in param.marks]
        combinations.append(
            pytest.param(
                *(value for param in params for value in param.values),
                id="-".join(str(param.id or param.values[0]) for param in params),
                marks=marks if places in chosen else [*marks, pytest.mark.nightly],
            )
        )
    return combinations


def nightly(params: Sequence[Any]) -> list[Any]:
    """Return the same test parameters for `make test-nightly` alone."""
    return [
        pytest.param(*one.values, id=one.id, marks=(*one.marks, pytest.mark.nightly)) for one in map(_param, params)
    ]


def _param(value: Any) -> Any:
    return value if isinstance(value, type(pytest.param())) else pytest.param(value)
