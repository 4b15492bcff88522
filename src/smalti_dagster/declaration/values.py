"""Kinds of values that several sections of a declaration hold."""

import importlib.util
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

Share = Annotated[float, Field(ge=0, le=1)]

IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""`module:name`."""


def require_import_path(name: str, text: str) -> None:
    """Check that a field holds `module:function`.

    Raises:
        ValueError: it does not.
    """
    if not IMPORT_PATH.fullmatch(text):
        raise ValueError(f"`{name}` must be module:function, found {text!r}")


def module_text(path: str) -> str:
    """Return the source of the module in `module:name`, which is not imported; empty without a source to read."""
    with suppress(ImportError, ValueError, AttributeError):  # a run says what is wrong with the module
        spec = importlib.util.find_spec(path.partition(":")[0])
        if spec is not None and spec.loader is not None:
            return spec.loader.get_source(spec.name) or ""  # type: ignore[attr-defined]
    return ""


def import_path(value: Any) -> Any:
    """Return the import path of a function or class, and any other value as it is.

    The processes of steps, and of a cluster, import it by that path.

    Raises:
        ValueError: it cannot be imported by its name, such as a lambda or a function within a function.
    """
    if not callable(value):
        return value
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", type(value).__qualname__)
    if module == "__main__" or getattr(sys.modules.get(str(module)), name, None) is not value:
        raise ValueError(
            f"{module}.{name} cannot be imported by the processes of steps: define it by `def` or `class` at the top "
            "level of a module, and give it under that name"
        )
    return f"{module}:{name}"


if TYPE_CHECKING:
    Function = Any  # given as a function or as its import path; read as the path
else:
    Function = Annotated[str, BeforeValidator(import_path)]
"""A function or class: itself in Python, `module:name` in YAML. The declaration holds its import path."""
