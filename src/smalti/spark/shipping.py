"""Functions of the user on executors that do not have their modules: they travel with the task, code and all.

Spark pickles a function of a module by its name, which executors then have to import. Modules that lie in the user's
own folders, and not where packages are installed, are pickled by value instead. What a function imports while it runs
does not travel.
"""

import os
import pickle
import site
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ship_function(session: "SparkSession", function: Callable[..., Any]) -> list[str]:
    """Have Spark send the code of a function's module, and of those loaded from the same folder, to its executors.

    It holds for this process from now on. Nothing is done on a local master, whose workers import what this process
    does; for an installed module; and where a global of the function cannot be pickled, such as a lock: such a module
    has to be installed on the executors.

    Returns:
        Names of the top-level modules and packages that are sent.
    """
    if _is_local(session):
        return []
    from pyspark import cloudpickle

    known = cloudpickle.list_registry_pickle_by_value()
    modules = [each for each in _beside(function.__module__) if each.__name__ not in known]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        cloudpickle.dumps(function)
    except (pickle.PicklingError, TypeError, RecursionError):
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
        return []
    return [module.__name__ for module in modules]


def _is_local(session: "SparkSession") -> bool:
    if ".connect." in type(session).__module__ or os.environ.get("DATABRICKS_RUNTIME_VERSION"):
        return False  # its server or cluster has a folder and an environment of its own
    master = session.conf.get("spark.master", "")
    return master == "local" or str(master).startswith("local[")


def _beside(name: str) -> list[ModuleType]:
    """Return the top-level modules that lie beside the one of this name; none if it is installed or has no file."""
    folder = _folder_of(sys.modules[name.partition(".")[0]])
    if folder is None or any(folder.is_relative_to(place) for place in _installed()):
        return []
    return [
        module
        for name, module in sorted(sys.modules.items())
        if "." not in name and name not in ("__main__", "smalti") and _folder_of(module) == folder
    ]


def _folder_of(module: ModuleType) -> Path | None:
    """Return the folder that holds a top-level module or package; None of one without a file."""
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    return Path(places[0]).resolve().parent if places[0] else None


def _installed() -> list[Path]:
    """Return the folders where Python and its packages are installed."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [Path(each).resolve() for each in {*found, *site.getsitepackages(), site.getusersitepackages()}]
