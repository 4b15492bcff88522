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
        return sorted({*homes, *vars(module), *(info.name for info in iter_modules(module.__path__))})

    return get, names


class _Shared(ModuleType):
    """A module that has no file: its names are those of another module, which is imported when one is asked for.

    What is assigned is assigned in both, except for its own names.
    """

    def __init__(self, name: str, home: str, own: Mapping[str, Any]) -> None:
        super().__init__(name, f"A path of another library; the names are those of `{home}`.")
        vars(self).update(own, __spec__=ModuleSpec(name, None), _home=home, _own=frozenset(own))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filled_home(), name)

    def __dir__(self) -> list[str]:
        self._filled_home()
        return sorted(vars(self))

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value
        if not (name.startswith("__") or name in self._own):  # such as `__spec__`, which the import system sets
            setattr(import_module(self._home), name, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        delattr(import_module(self._home), name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the module as a reference, as `cloudpickle` does with modules, which knows only their plain type."""
        return import_module, (self.__name__,)

    def _filled_home(self) -> ModuleType:
        """Return the other module, whose names this one then has: what patches attributes looks for them there."""
        home = import_module(vars(self)["_home"])
        if isinstance(home, _Shared):
            home._filled_home()
        vars(self).update({**vars(home), **vars(self)})
        return home


def serve(package: str, *names: str, home: str | None = None, **own: Any) -> None:
    """Make the modules `package.name` importable, which have no file, and whose names are those of one that has.

    Args:
        package: the `__name__` of the package or module that calls this at its end, or of one that is served by it.
        names: the modules' names below it. The package keeps a function of one of these names.
        home: the module that has the names; by default the package itself.
        **own: what the modules have instead of the attributes of `home`, such as `__all__`.
    """
    attributes = vars(sys.modules[package])
    attributes.setdefault("__path__", [])  # the import system looks for modules only below packages
    for name in names:
        module = sys.modules[f"{package}.{name}"] = _Shared(f"{package}.{name}", home or package, own)
        attributes.setdefault(name, module)


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
