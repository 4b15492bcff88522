"""Passing storage credentials to training processes on other machines, without writing them to a file.

Spark's closure carries them to the executors in memory.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from smalti.storage.schemes import store_variables

STORAGE_OPTIONS_VARIABLE = "SMALTI_STORAGE_OPTIONS"
"""Environment variable with a run's `storage_options` as JSON."""


def detect_storage_environment() -> dict[str, str]:
    """Return the environment variables of this process in which stores look for credentials and endpoints."""
    return store_variables(os.environ)


def storage_options_from_environment() -> dict[str, Any]:
    """Return the storage options that a launcher has put into this process's environment; empty by default."""
    options: dict[str, Any] = json.loads(os.environ.get(STORAGE_OPTIONS_VARIABLE, "{}"))
    return options


class CarriedEnvironment:
    """Environment variables that are set where this object is unpickled; the unpickled object is empty.

    On the executor, TorchDistributor pickles the arguments of the training function again, into a file. The variables
    must not be in that file, and need not be: the training process inherits the executor's environment.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_environment, (self._variables,)

    def __repr__(self) -> str:
        return f"CarriedEnvironment({', '.join(sorted(self._variables))})"


def _set_environment(variables: dict[str, str]) -> CarriedEnvironment:
    os.environ.update(variables)
    return CarriedEnvironment({})
