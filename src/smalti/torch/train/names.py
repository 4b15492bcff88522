"""Objects that a configuration names as `module:name`."""

import importlib
from typing import Any

from smalti.errors import SchemaError


def find_named(path: str, *, field: str) -> Any:
    """Return the object of a module.

    Raises:
        SchemaError: there is no such module or object; `field` is the field of the configuration that names it.
    """
    module_name, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise SchemaError(
            f"`{field}` '{path}': {error}. Expected 'module:name' with an importable module: installed where the "
            "training processes run, or importable in the process that calls `train`.",
            **{field: path},
        ) from error
