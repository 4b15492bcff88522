"""The objects of the API reference, as docs/api/*/index.md list them."""

import importlib
import re
from functools import cache
from pathlib import Path

ENTRIES = [
    entry
    for page in sorted((Path(__file__).resolve().parents[2] / "docs/api").glob("*/index.md"))
    for entry in re.findall(r"^::: (\S+) as ([\w.]+)(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]
"""(path, public name, what is shown of its members) of each object."""


@cache
def documented(path):
    """Return an object of the reference."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
