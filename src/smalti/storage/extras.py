"""Optional packages: imported when an address first needs one, with the pip command when it is not there."""

import importlib
import os
from typing import Any

from smalti.errors import MissingDependency

CONNECT_SECONDS = 5
READ_SECONDS = 30
LIBRARY_ATTEMPTS = 2
"""Attempts inside a client library for one request; `FsspecStore` adds its own, with a deadline over all."""

_EXTRAS = {
    "s3fs": "s3", "botocore": "s3", "gcsfs": "gcs", "adlfs": "azure", "azure": "azure",
    "databricks.sdk": "databricks", "sshfs": "sftp", "aiohttp": "https", "huggingface_hub": "hf",
}  # fmt: skip


def load_extra(module: str) -> Any:
    """The imported module, or `MissingDependency` naming the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = _EXTRAS.get(module) or _EXTRAS[module.split(".", maxsplit=1)[0]]
        raise MissingDependency(
            f"this address needs the Python package {module!r}, which is not installed: pip install 'smalti[{extra}]'",
            module=module,
            extra=extra,
        ) from error


def detect(*names: str) -> str | None:
    """The first of the environment variables that is set and not empty."""
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    return None
