"""Kinds of values that several sections of a declaration hold."""

import importlib.util
import re
from contextlib import suppress
from typing import Annotated

from pydantic import Field

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
