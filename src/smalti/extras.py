"""Optional packages, and the extra of Smalti that installs each."""

from importlib import import_module
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
    """Return the attribute `name` of a module of Smalti, which is imported now; `extra` installs all that it needs.

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
