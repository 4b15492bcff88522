"""Which module makes the file system of a scheme; they are imported here, when an address first needs one."""

import importlib
from collections.abc import Mapping
from typing import Any

from smalti.storage.extras import load_extra
from smalti.storage.s3 import fill_s3

__all__ = ["READ_ONLY", "SCHEMES", "fill_options", "load_extra", "make_filesystem"]

SCHEMES = {
    "s3": "s3", "s3a": "s3", "oci": "oci", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "abfs",
    "azure": "azure", "azure-dl": "abfs", "dbfs": "dbfs", "sftp": "sftp", "ssh": "sftp", "hf": "hf", "https": "https",
    "http": "http", "memory": "memory",
}  # fmt: skip
"""Accepted URL schemes and the canonical one for each."""

READ_ONLY = frozenset({"hf", "https", "http"})
"""Schemes that only read."""

_MAKERS = {
    "s3": "smalti.storage.s3", "oci": "smalti.storage.s3", "gs": "smalti.storage.gcs", "abfs": "smalti.storage.azure",
    "dbfs": "smalti.storage.volumes", "sftp": "smalti.storage.sftp", "hf": "smalti.storage.hub",
    "https": "smalti.storage.web", "http": "smalti.storage.web",
}  # fmt: skip


def fill_options(scheme: str, root: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options completed from the environment where workers on other machines must see the same."""
    return fill_s3(root, options) if scheme == "s3" else dict(options)


def make_filesystem(scheme: str, options: Mapping[str, Any]) -> Any:
    """A new fsspec file system; not shared with other users of fsspec, so that changed credentials take effect.

    Raises:
        MissingDependency: the extra for this scheme is not installed; the message has the pip command.
        StoreAuthError: the options name credentials that cannot be used.
    """
    if scheme == "memory":
        return importlib.import_module("fsspec.implementations.memory").MemoryFileSystem(**options)
    return importlib.import_module(_MAKERS[scheme]).make(dict(options))
