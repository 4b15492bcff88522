"""Kinds of values that several sections of a declaration hold."""

import re
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
