"""The objects of the API reference, as docs/api/*/index.md list them."""

import importlib
import runpy
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
pages_of = runpy.run_path(str(REPOSITORY / "tools/site/reference.py"))["pages_of"]
ENTRIES = [
    entry
    for path in sorted((REPOSITORY / "docs/api").glob("*/index.md"))
    for page in pages_of(path.read_text(encoding="utf-8"))
    for entry in page.entries
]
"""(path, public name, what is shown of its members) of each object."""


@cache
def documented(path):
    """Return an object of the reference."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
