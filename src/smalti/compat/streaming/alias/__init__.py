"""The name `streaming` for this package, in this process and in those that it starts.

`install` adds an import hook, so that `streaming.base.util` is the very module `smalti.compat.streaming.base.util`.
It also puts this folder on `sys.path`, which `multiprocessing` passes on to spawned processes, and on PYTHONPATH, which
every program started from here inherits, and which Spark then sends to Python workers of other machines. A process that
finds this folder there registers the alias itself: at its start by `sitecustomize.py`, and otherwise when it first
imports `streaming.py`. The `dist-info` beside them answers `importlib.metadata.version("mosaicml-streaming")`.
"""

import os
import sys
from collections.abc import Sequence
from copy import copy
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

_NAME, _PACKAGE = "streaming", "smalti.compat.streaming"
_SPARK_MODULES = ("pyspark.core.context", "pyspark.context")  # of PySpark 4, and of 3.5

FOLDER = str(Path(__file__).parent)
"""The folder that holds the alias for processes that do not call `install` themselves."""


class _AliasLoader(InspectLoader):
    """Gives a module under its second name, without loading it again."""

    def __init__(self, target: ModuleSpec) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the import system's interface
        return import_module(self._target.name)

    def exec_module(self, module: ModuleType) -> None:
        """Keep the spec of the module's own name, and functions of a package that have the name of a module below it.

        The import system would assign the module to that name when it is loaded by its alias: it is loaded now.
        """
        module.__spec__ = self._target
        for name, value in list(vars(module).items()):
            below = sys.modules.get(f"{self._target.name}.{name}", value)
            if below is not value:
                sys.modules[f"{_NAME}{self._target.name.removeprefix(_PACKAGE)}.{name}"] = below

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        """Return the module's code, for `python -m streaming...`."""
        return cast(InspectLoader, self._target.loader).get_code(self._target.name)

    def get_source(self, fullname: str) -> str | None:  # noqa: ARG002
        """Return the module's source."""
        return cast(InspectLoader, self._target.loader).get_source(self._target.name)


class _AliasFinder(MetaPathFinder):
    """Finds `streaming` and the modules below it in `smalti.compat.streaming`.

    The module of `SparkContext`, which may be imported after `install`, is found as without this finder.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname in _SPARK_MODULES:
            return _spec_that_tells_spark(fullname, path)
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        found = find_spec(_PACKAGE + fullname.removeprefix(_NAME))
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return spec_from_loader(fullname, _AliasLoader(found), origin=found.origin, is_package=is_package)


def install() -> None:
    """Register `smalti.compat.streaming` as `streaming`, here and in processes that are started from now on.

    A MosaicML Streaming that is installed but not yet imported is hidden. Calling it again has no effect.

    Raises:
        ImportError: another `streaming` is imported already.
    """
    present = sys.modules.get(_NAME)
    package = import_module(_PACKAGE)
    if present not in {None, package} and getattr(present, "__file__", None) != f"{FOLDER}/{_NAME}.py":
        raise ImportError(
            f"cannot register smalti.compat.streaming as `streaming`: another module of this name is imported already,"
            f" from {getattr(present, '__file__', None)}. Call smalti.compat.streaming.install() before anything"
            f" imports `streaming`, or run the program by `python -m smalti.compat.streaming`"
        )
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())
    sys.modules[_NAME] = package
    if FOLDER not in sys.path:
        sys.path.insert(1, FOLDER)  # the first is the program's own folder
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH"))
    _tell_spark()


def uninstall() -> None:
    """Undo `install`; modules that imported `streaming` keep what they have."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _AliasFinder)]
    for context in _spark_contexts():
        if isinstance(vars(context).get("environment"), _WorkersEnvironment):
            del context.environment  # type: ignore[attr-defined]
    sys.path[:] = [folder for folder in sys.path if folder != FOLDER]
    for name in [name for name in sys.modules if name == _NAME or name.startswith(f"{_NAME}.")]:
        del sys.modules[name]
    kept = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder not in {"", FOLDER}]
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        os.environ.pop("PYTHONPATH", None)


class _WorkersEnvironment:
    """`SparkContext.environment` while the alias is installed: the variables that Spark sends with each function.

    PYTHONPATH begins with the alias's folder, so that Python workers of any cluster have the alias, whatever started
    their machine's processes. Contexts keep their own dict in their attributes, as without this descriptor.
    """

    def __get__(self, context: Any, owner: type | None = None) -> Any:
        if context is None:
            return self
        variables = vars(context)["environment"]
        variables["PYTHONPATH"] = python_path(variables.get("PYTHONPATH"))
        return variables

    def __set__(self, context: Any, variables: dict[str, str]) -> None:
        vars(context)["environment"] = variables


def _spec_that_tells_spark(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Return the spec of a module whose own loader loads it; its class is changed then."""
    spec = PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        loader: Any = copy(spec.loader)  # all modules of a zip file have one
        spec.loader = loader

        def exec_module(module: ModuleType) -> None:
            type(loader).exec_module(loader, module)
            _tell_spark()

        loader.exec_module = exec_module
    return spec


def _spark_contexts() -> list[type]:
    """Return the class `SparkContext`, if it is imported."""
    modules = [sys.modules.get(name) for name in _SPARK_MODULES]
    return [vars(module)["SparkContext"] for module in modules if module is not None and "SparkContext" in vars(module)]


def _tell_spark() -> None:
    """Have Spark send the alias's folder to the Python workers of its sessions, those that run already too."""
    for context in _spark_contexts():
        if "environment" not in vars(context):
            context.environment = _WorkersEnvironment()  # type: ignore[attr-defined]


def python_path(present: str | None) -> str:
    """Return a PYTHONPATH that begins with the alias's folder, followed by the present ones."""
    folders = (present or "").split(os.pathsep)
    return os.pathsep.join([FOLDER, *(folder for folder in folders if folder not in {"", FOLDER})])
