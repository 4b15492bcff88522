"""Run with `streaming` in place: describe its public interface, a line of text for each name; imports no Smalti.

    python described_surface.py OUT.json FOLDER             everything that the modules of `streaming` define
    python described_surface.py OUT.json FOLDER THERE.json  the same names as in THERE.json

FOLDER is empty; sets are written there, and read by objects whose attributes are described.

A key is `module:name`, `module:Class.member`, or `instance label:attribute`. A name that a module only imports from
another one is not its own; a package's `__init__` owns what it imports. A class has the members that it defines itself;
those that it inherits are its bases'.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import sys
import warnings
from enum import Enum
from functools import cache
from logging import Logger
from types import ModuleType
from typing import TypeVar

import numpy as np

PRIVATE_BUT_USED = {"_encodings"}
"""Public code adds entries to these tables."""

MISSING = object()

DUNDERS = {"__call__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__", "__eq__"}


def is_public(name):
    return not name.startswith("_") or name in PRIVATE_BUT_USED


def is_owned(module, name, value):
    """Return whether the value is one of the module's own: defined there, or collected by a package."""
    home = getattr(value, "__module__", None)
    if inspect.isclass(value) or inspect.isroutine(value):
        return home == module.__name__ or (hasattr(module, "__path__") and str(home).startswith("streaming."))
    if isinstance(value, ModuleType):
        return hasattr(module, "__path__") and value.__name__.startswith("streaming.")
    return name in assigned(module)


@cache
def assigned(module):
    """Return the names that the module assigns."""
    names = set()
    for statement in ast.parse(inspect.getsource(module)).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not isinstance(getattr(module, name, None), TypeVar | Logger)}


def listed(package):
    """Return the names of all entries of a package's modules."""
    keys = []
    for info in pkgutil.walk_packages(package.__path__, "streaming."):
        if "._" in info.name:
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError as error:  # scripts of `convert` that need libraries of their own
            print(f"{info.name} is not described: {error}", file=sys.stderr)
            continue
        keys += [f"{info.name}:"]
        keys += [key for name, value in vars(module).items() for key in keys_of(module, name, value)]
    return [*(key for name, value in vars(package).items() for key in keys_of(package, name, value)), *keys]


def keys_of(module, name, value):
    if not is_public(name) or not is_owned(module, name, value):
        return []
    key = f"{module.__name__}:{name}"
    if not inspect.isclass(value) or value.__module__ != module.__name__:
        return [key]
    members = {*vars(value), *vars(value).get("__annotations__", {})}
    return [key, *(f"{key}.{member}" for member in sorted(members) if is_public(member) or member in DUNDERS)]


def plain(value):
    """Return a text of a value that does not depend on where its classes are defined."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{plain(key)}: {plain(item)}" for key, item in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(plain, value))) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(plain, value))})"
    plain_types = {"builtins", "pyspark.sql.types"}
    return repr(value) if type(value).__module__ in plain_types else f"a {type(value).__name__}"


def signature(function):
    """Return names, kinds and defaults of all parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of a builtin
        return "(?)"
    by_place, by_keyword = [], []
    for parameter in parameters:
        default = "" if parameter.default is parameter.empty else f" = {plain(parameter.default)}"
        texts = by_keyword if parameter.kind is parameter.KEYWORD_ONLY else by_place
        texts.append(f"{parameter.kind.description} {parameter.name}{default}")
    return "(" + ", ".join([*by_place, *sorted(by_keyword)]) + ")"


def named(classes):
    return sorted({kind.__name__ for kind in classes} - {"object", "Generic", "ABC"})


def described(value):
    if isinstance(value, ModuleType):
        return {"module": value.__name__.removeprefix("smalti.compat.")}
    if inspect.isclass(value):
        taken = "an enum" if issubclass(value, Enum) else signature(value)
        return {"class": taken, "bases": named(value.__bases__), "all bases": named(value.__mro__[1:])}
    if inspect.isroutine(value):
        return {"function": signature(value)}
    return {"value": plain(value)}


def described_member(kind, name):
    value = inspect.getattr_static(kind, name, MISSING)
    if isinstance(value, property):
        return {"attribute": "settable" if value.fset else "readable"}
    if hasattr(type(value), "__set__"):
        return {"attribute": "settable"}
    if isinstance(value, classmethod | staticmethod):
        return {type(value).__name__: signature(value.__func__)}
    if inspect.isroutine(value):
        return {"method": signature(value)}
    if value is not MISSING:
        return {"attribute": f"settable, {plain(value)}"}
    if any(name in vars(base).get("__annotations__", {}) for base in kind.__mro__):
        return {"attribute": "settable"}
    raise AttributeError(name)


def described_key(key):
    """Return what stands under the key, or None where it is missing."""
    where, name = key.split(":")
    try:
        module = importlib.import_module(where)
        if not name:
            return {"module": where}
        name, _, member = name.partition(".")
        value = getattr(module, name)
        return described_member(value, member) if member else described(value)
    except (ImportError, AttributeError) as error:
        print(f"{key}: {error!r}", file=sys.stderr)
        return None


def write_sets(folder):
    """Write a set of each format; yield writers, some of them still open."""
    from streaming import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

    makers = {
        "mds": lambda out: MDSWriter(columns={"id": "int", "text": "str"}, out=out, hashes=["sha1"]),
        "json": lambda out: JSONWriter(columns={"id": "int", "text": "str"}, out=out),
        "csv": lambda out: CSVWriter(columns={"id": "int", "text": "str"}, out=out),
        "tsv": lambda out: TSVWriter(columns={"id": "int", "text": "str"}, out=out),
        "xsv": lambda out: XSVWriter(columns={"id": "int", "text": "str"}, separator="|", out=out),
    }
    for label, make in makers.items():
        with make(f"{folder}/{label}") as writer:
            for i in range(20):
                writer.write({"id": i, "text": f"text {i}"})
            yield f"{label} writer", writer


def datasets(folder):
    from streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
    from streaming.base.spanner import Spanner
    from streaming.base.world import World

    for label in ("mds", "json", "csv", "tsv", "xsv"):
        local = LocalDataset(f"{folder}/{label}")
        yield f"{label} reader", local.shards[0]
    yield "local dataset", local
    stream = Stream(remote=f"{folder}/mds", local=f"{folder}/cache", proportion=0.5)
    yield "stream", stream
    dataset = StreamingDataset(streams=[stream], batch_size=2, shuffle=True, cache_limit="1mb")
    yield "dataset", dataset
    loader = StreamingDataLoader(dataset, batch_size=2)
    next(iter(loader))
    yield "loader", loader
    yield "world", World.detect()
    yield "spanner", Spanner(np.array([3, 4]))


def type_name(value):
    """Return the name of the value's type; numbers of numpy count as Python's."""
    return type(value.item() if isinstance(value, np.generic) else value).__name__


def described_instances(folder):
    """Return the public attributes of objects that users hold, with the types of their values."""
    found = {}
    for label, thing in [*write_sets(folder), *datasets(folder)]:
        for name, value in vars(thing).items():
            if is_public(name):
                found[f"instance {label}:{name}"] = {"attribute": type_name(value)}
    return found


def checked_instances(folder, keys):
    """Return the same attributes where they exist here."""
    things, found = {}, {}
    try:
        things |= write_sets(folder)
        things |= datasets(folder)
    except (ImportError, AttributeError) as error:
        print(f"no more instances: {error!r}", file=sys.stderr)
    for key in keys:
        label, name = key.removeprefix("instance ").split(":")
        value = getattr(things.get(label, things), name, things)
        found[key] = None if value is things else {"attribute": type_name(value)}
    return found


def main(out, folder, there=None):
    warnings.simplefilter("ignore")
    import streaming

    if there is None:
        found = {key: described_key(key) for key in listed(streaming)} | described_instances(folder)
    else:
        with open(there) as file:
            keys = list(json.load(file))
        instances = [key for key in keys if key.startswith("instance ")]
        found = {key: described_key(key) for key in keys if key not in instances}
        found |= checked_instances(folder, instances)
    with open(out, "w") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
