"""The storage credentials in this process's environment, and how they reach processes on other machines.

They travel in memory: Spark's closure carries them to the executor, and nothing here writes them to a file.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from smalti.storage.schemes import store_variables

STORAGE_OPTIONS_VARIABLE = "SMALTI_STORAGE_OPTIONS"


def detect_storage_environment() -> dict[str, str]:
    """Return this process's environment variables by which stores find their credentials and endpoints."""
    return store_variables(os.environ)


def storage_options_from_environment() -> dict[str, Any]:
    """The storage options that a launcher has put into this process's environment; empty without."""
    options: dict[str, Any] = json.loads(os.environ.get(STORAGE_OPTIONS_VARIABLE, "{}"))
    return options


class CarriedEnvironment:
    """Environment variables that are set wherever this object is unpickled, and that then are no longer in it.

    TorchDistributor pickles the arguments of the training function once more, on the executor, into a file. The
    variables must not be in that file, and need not be: the training process inherits the executor's environment.
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
