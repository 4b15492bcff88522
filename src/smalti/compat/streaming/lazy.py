"""Packages whose names and submodules are imported on first use, so that writing a shard set does not import torch."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_package(
    package: str, defining_modules: Mapping[str, str], submodules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for the `__init__` of a package.

    Args:
        package: the package's `__name__`.
        defining_modules: public name to the module that defines it, relative to the package, such as `base.local`.
        submodules: modules of the package that are reachable as attributes without an import of their own.
    """
    modules = frozenset(submodules)

    def get(name: str) -> Any:
        if name in defining_modules:
            value = getattr(import_module(f"{package}.{defining_modules[name]}"), name)
            setattr(sys.modules[package], name, value)  # also over a submodule of the same name
            return value
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*defining_modules, *modules, *vars(sys.modules[package])})
