"""Optional packages, the extra of Smalti that installs each, and packages whose names are imported on first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import resolve_name
from typing import Any

from smalti.errors import MissingDependency

EXTRA_OF = {
    "cloudpickle": "train",
    "optuna": "tune",
    "pandas": "spark",
    "pydantic": "train",
    "pyspark": "spark",
    "rich": "cli",
    "safetensors": "train",
    "tensorflow": "tf",
    "torch": "torch",
    "tqdm": "train",
    "transformers": "train",
    "typer": "cli",
    "yaml": "cli",
}
"""The smallest extra that installs a package, by the name under which the package is imported."""


def import_attribute(module: str, name: str, *, extra: str = "") -> Any:
    """Return an attribute of a module, which is imported now; `extra` installs all that a module of Smalti needs.

    Raises:
        MissingDependency: the module needs an optional package that is not installed.
    """
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF or error.name != package:
            raise
        wanted = extra or EXTRA_OF[package]
        raise MissingDependency(
            f"{name} needs the package {package}, which is not installed: pip install 'smalti[{wanted}]'",
            package=package,
            extra=wanted,
        ) from error


def lazy_names(
    package: str, homes: Mapping[str, str], *, extra: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for the `__init__` of a package whose names are imported on first use.

    Args:
        package: The package's `__name__`.
        homes: Public name to the module that defines it, relative to the package, such as `trainer.task`; `.sources`
            is a module beside the package.
        extra: The extra that installs all that the package needs, as for `import_attribute`.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_attribute(resolve_name(f".{homes[name]}", package), name, extra=extra)

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(sys.modules[package]), *homes})

    return __getattr__, __dir__
