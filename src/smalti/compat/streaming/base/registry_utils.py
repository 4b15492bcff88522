"""Registries of named classes and functions, filled by code or by the entry points of installed packages.

MosaicML Streaming builds them on the package `catalogue`; this is the part of its behaviour that code relies on. An
entry point belongs to a registry if its group is the registry's namespace joined by `_`.
"""

import copy
import functools
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

__all__ = ["TypedRegistry", "construct_from_registry", "create_registry", "import_file", "save_registry"]

T = TypeVar("T")
TypeBoundT = TypeVar("TypeBoundT", bound=type)

_entries: dict[tuple[str, ...], Any] = {}
"""Everything registered, by namespace and name; of all registries, so that `save_registry` restores them together."""


class RegistryError(ValueError):
    """A name that is not registered, or a namespace that is taken."""


class TypedRegistry(Generic[T]):
    """The classes or functions registered under one namespace.

    Args:
        namespace: parts of the namespace, such as `("streaming", "streams_registry")`.
        entry_points: look for entry points of installed packages, which come before what code registered.
        description: what is registered here.
    """

    def __init__(self, namespace: Sequence[str], entry_points: bool = False, description: str = "") -> None:  # noqa: FBT001, FBT002 - MosaicML's signature
        self.namespace = namespace
        self.entry_point_namespace = "_".join(namespace)
        self.entry_points = entry_points
        self.description = description

    def __contains__(self, name: str) -> bool:
        return (*self.namespace, name) in _entries or (
            self.entry_points and any(entry.name == name for entry in self._found_entry_points())
        )

    def __call__(self, name: str, func: T | None = None) -> Any:
        """Register `func` as `register` does."""
        return self.register(name, func=func)

    def register(self, name: str, *, func: T | None = None) -> Any:
        """Register `func` under a name and return it; without `func`, return a decorator that does so.

        A name that is registered already gets the new value.
        """

        def add(value: Any) -> Any:
            _entries[(*self.namespace, name)] = value
            return value

        return add if func is None else add(func)

    def register_class(self, name: str, *, func: TypeBoundT | None = None) -> Any:
        """Register a class as `register` does."""
        return self.register(name, func=func)  # type: ignore[arg-type]  # a class is one kind of T

    def get(self, name: str) -> T:
        """Return what is registered under a name.

        Raises:
            RegistryError: nothing is.
        """
        if self.entry_points and (found := self.get_entry_point(name)) is not None:
            return found
        if (*self.namespace, name) not in _entries:
            names = ", ".join(sorted(self.get_all())) or "none"
            raise RegistryError(
                f"Can't find {name!r} in registry {' -> '.join(self.namespace)}. Available names: {names}. Register it "
                "before it is used."
            )
        entry: T = _entries[(*self.namespace, name)]
        return entry

    def get_all(self) -> dict[str, T]:
        """Return everything that is registered, by name."""
        own = {key[-1]: value for key, value in _entries.items() if key[:-1] == tuple(self.namespace)}
        return {**(self.get_entry_points() if self.entry_points else {}), **own}

    def get_entry_point(self, name: str, default: T | None = None) -> T | None:
        """Return what an entry point of that name refers to; `default` if there is none."""
        for entry in self._found_entry_points():
            if entry.name == name:
                loaded: T = entry.load()
                return loaded
        return default

    def get_entry_points(self) -> dict[str, T]:
        """Return what the entry points of this namespace refer to, by name."""
        return {entry.name: entry.load() for entry in self._found_entry_points()}

    def find(self, name: str) -> dict[str, str | int | None]:
        """Return where a registered class or function is defined: its `module`, `file`, `line_no` and `docstring`.

        Raises:
            RegistryError: nothing is registered under that name.
        """
        found = self.get(name)
        source: dict[str, str | int | None] = dict.fromkeys(("file", "line_no"))
        with suppress(OSError, TypeError):  # compiled code has no source
            source = {"file": inspect.getfile(found), "line_no": inspect.getsourcelines(found)[1]}  # type: ignore[arg-type]
        module = inspect.getmodule(found)
        return {"module": module.__name__ if module else None, **source, "docstring": inspect.getdoc(found)}

    def _found_entry_points(self) -> importlib.metadata.EntryPoints:
        return importlib.metadata.entry_points(group=self.entry_point_namespace)


def create_registry(
    *namespace: str,
    generic_type: Any,  # noqa: ARG001 - MosaicML's signature: for type checkers
    entry_points: bool = False,
    description: str = "",
) -> TypedRegistry[Any]:
    """Return a new registry.

    Args:
        namespace: parts of its namespace.
        generic_type: type of what will be registered.
        entry_points: look for entry points of installed packages.
        description: what will be registered.

    Raises:
        RegistryError: the namespace is the full name of something that is registered.
    """
    if namespace in _entries:
        raise RegistryError(f"Namespace already exists: {namespace}")
    return TypedRegistry(namespace, entry_points=entry_points, description=description)


def construct_from_registry(
    name: str,
    registry: TypedRegistry[Any],
    partial_function: bool = True,  # noqa: FBT001, FBT002 - MosaicML's signature
    pre_validation_function: Callable[[Any], None] | type | None = None,
    post_validation_function: Callable[[Any], None] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Return an instance of a registered class, or a registered function with its arguments.

    Args:
        name: name of the class or function.
        registry: the registry that has it.
        partial_function: return a function with its arguments bound; otherwise call it.
        pre_validation_function: called with what is registered; or a class that it must be a subclass of.
        post_validation_function: called with the result.
        kwargs: arguments of the class or function.

    Raises:
        ValueError: the name is not registered, or what it names is of another kind.
    """
    registered, arguments = registry.get(name), kwargs or {}
    if isinstance(pre_validation_function, type):
        if not (isinstance(registered, type) and issubclass(registered, pre_validation_function)):
            raise ValueError(  # noqa: TRY004 - as MosaicML Streaming does
                f"Expected {name} to be of type {pre_validation_function}, but got {type(registered)}"
            )
    elif callable(pre_validation_function):
        pre_validation_function(registered)
    elif pre_validation_function is not None:
        raise ValueError(
            f"Expected pre_validation_function to be a callable or a type, but got {type(pre_validation_function)}"
        )
    if not callable(registered):
        raise ValueError(  # noqa: TRY004 - as MosaicML Streaming does
            f"Expected {name} to be a class or function, but got {type(registered)}"
        )
    is_called = isinstance(registered, type) or not partial_function
    constructed = registered(**arguments) if is_called else functools.partial(registered, **arguments)
    if post_validation_function is not None:
        post_validation_function(constructed)
    return constructed


def import_file(loc: str | Path) -> ModuleType:
    """Run a Python file and return its module.

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeError: its code raised an error.
    """
    if not Path(loc).exists():
        raise FileNotFoundError(f"File {loc} does not exist.")
    spec = importlib.util.spec_from_file_location("python_code", str(loc))
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{loc} is not a Python file: expected a name that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # what the file's code raises is open
        raise RuntimeError(f"Error executing {loc}") from error
    return module


@contextmanager
def save_registry() -> Iterator[None]:
    """Restore all registries at the end of a `with` block."""
    saved = copy.copy(_entries)
    try:
        yield
    finally:
        _entries.clear()
        _entries.update(saved)
