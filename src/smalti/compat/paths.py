"""Import paths and signatures of other libraries.

Names that are imported on first use, modules that share one module here, and constructors that share arguments.

Names are imported on first use so that writing a shard set imports no torch, and reading Parquet files no PySpark.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, TypeVar

InitT = TypeVar("InitT", bound=Callable[..., None])


def lazy_package(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for the `__init__` of a package, whose modules are attributes as well.

    Args:
        package: the package's `__name__`.
        homes: public name to the module that defines it, relative to the package, such as `base.local`.
    """

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if name.startswith("_") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    def names() -> list[str]:
        module = sys.modules[package]
        return sorted({*homes, *vars(module), *(found.name for found in iter_modules(module.__path__))})

    return get, names


class _Shared(ModuleType):
    """A module that has no file: its names are those of another module, also where they are assigned."""

    def __init__(self, name: str, home: ModuleType) -> None:
        super().__init__(name)
        vars(self).update({**vars(home), **vars(self), "__spec__": ModuleSpec(name, None), "_home": home})

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value
        if not name.startswith("__"):  # such as `__spec__`, which the import system sets
            setattr(vars(self)["_home"], name, value)


def serve(package: str, *names: str) -> None:
    """Make the modules `package.name` importable, whose names are those of the package itself here.

    Args:
        package: the `__name__` of the package or module that calls this at its end.
        names: the modules' names below it.
    """
    home = sys.modules[package]
    vars(home).setdefault("__path__", [])  # the import system looks for modules only below packages
    for name in names:
        sys.modules[f"{package}.{name}"] = _Shared(f"{package}.{name}", home)
        setattr(home, name, sys.modules[f"{package}.{name}"])


def with_parameters(shared: Iterable[Parameter]) -> Callable[[InitT], InitT]:
    """Return a decorator of an `__init__` that takes `**arguments`: its signature, which tools read, names all of them.

    Args:
        shared: the arguments that it takes besides its own ones.
    """
    parameters = list(shared)

    def decorate(init: InitT) -> InitT:
        first, *own = signature(init).parameters.values()
        named = {each.name: each for each in own if each.kind is Parameter.KEYWORD_ONLY}
        others = [each for each in parameters if each.name not in named]
        vars(init)["__signature__"] = Signature([first, *named.values(), *others], return_annotation=None)
        return init

    return decorate
