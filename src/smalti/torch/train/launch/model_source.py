"""The source files of a model that `module:function` names, for training processes that cannot import it.

Spark's executors do not see the folder of the script that calls `train`; its own processes do.
"""

import contextlib
import importlib
import importlib.util
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_INSTALLATION_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")


def read_source(model: str) -> dict[str, str]:
    """Return the Python files that importing `model` needs, by their paths below the folder they are imported from.

    These are the module, or the whole of its top-level package, and all modules that this process has loaded from the
    same folder. The result is empty if `model` is not of the form `module:function`, is part of an installed package,
    or cannot be imported here: training processes need their own copy of those.
    """
    name, colon, _ = model.partition(":")
    try:
        root = _root_of(importlib.import_module(name)) if colon else None
    except ImportError:
        return {}  # the training processes may be able to import it; otherwise they raise
    if root is None or _is_installed(root):
        return {}
    package = root / name.partition(".")[0]
    files = {path for path in package.rglob("*.py") if path.is_file()}
    files |= {Path(vars(each)["__file__"]) for each in _loaded_modules() if _root_of(each) == root}
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(files)}


@contextlib.contextmanager
def importable(model: str, source: Mapping[str, str]) -> Iterator[None]:
    """Make `model` importable from its source files in the body, unless this process can import it without them."""
    name = model.partition(":")[0]
    if not source or _is_importable(name):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="smalti-model-") as folder:
        for path, text in source.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(folder)


def _loaded_modules() -> list[ModuleType]:
    values: list[Any] = list(sys.modules.values())  # may contain None and other objects that are not modules
    return [each for each in values if isinstance(each, ModuleType)]


def _root_of(module: ModuleType) -> Path | None:
    """Return the folder that a module was imported from; None if it was not imported from a Python file."""
    file = vars(module).get("__file__")
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    depth = module.__name__.count(".") + (path.name == "__init__.py")
    return path.parents[depth] if depth < len(path.parents) else None


def _is_installed(root: Path) -> bool:
    folders = {Path(sysconfig.get_path(kind)).resolve() for kind in _INSTALLATION_PATHS}
    return root in folders or root.name in {"site-packages", "dist-packages"}


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
