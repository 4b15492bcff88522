"""Which module makes the file system of a scheme; they are imported here, when an address first needs one."""

import importlib
from collections.abc import Mapping
from typing import Any

from smalti.storage.extras import READ_SECONDS, load_extra
from smalti.storage.s3 import fill_s3

__all__ = [
    "CONDITIONAL",
    "READ_ONLY",
    "SCHEMES",
    "UPLOADS_STAY",
    "call",
    "fill_options",
    "load_extra",
    "make_filesystem",
]

SCHEMES = {
    "s3": "s3", "s3a": "s3", "oci": "oci", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "abfs",
    "azure": "azure", "azure-dl": "abfs", "dbfs": "dbfs", "sftp": "sftp", "ssh": "sftp", "hf": "hf", "https": "https",
    "http": "http", "memory": "memory",
}  # fmt: skip
"""Accepted URL schemes and the canonical one for each."""

READ_ONLY = frozenset({"https", "http"})
"""Schemes that only read; hf:// refuses by itself, and says why."""

CONDITIONAL = frozenset({"s3", "oci", "gs", "abfs", "memory"})
"""Schemes whose file systems have `get_tagged` and `put_if_match`."""

UPLOADS_STAY = frozenset({"s3", "oci", "sftp", "dbfs"})
"""Schemes whose stores keep what a killed writer had uploaded, as parts or a temporary file, until it is aborted.

Google and Azure drop theirs within a week.
"""

_MAKERS = {
    "s3": "smalti.storage.s3", "oci": "smalti.storage.s3", "gs": "smalti.storage.gcs", "abfs": "smalti.storage.azure",
    "dbfs": "smalti.storage.volumes", "sftp": "smalti.storage.sftp", "hf": "smalti.storage.hub",
    "https": "smalti.storage.web", "http": "smalti.storage.web", "memory": "smalti.storage.inmemory",
}  # fmt: skip


def fill_options(scheme: str, root: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options completed from the environment where workers on other machines must see the same."""
    if scheme == "dbfs":
        # Its client blocks, so that the store cannot end a request that gets no answer: the client must.
        limit = min(READ_SECONDS, float(options.get("request_timeout", READ_SECONDS)))
        return {"http_timeout_seconds": limit} | dict(options)
    return fill_s3(root, options) if scheme == "s3" else dict(options)


def make_filesystem(scheme: str, options: Mapping[str, Any]) -> Any:
    """A new fsspec file system; not shared with other users of fsspec, so that changed credentials take effect.

    Raises:
        MissingDependency: the extra for this scheme is not installed; the message has the pip command.
        StoreAuthError: the options name credentials that cannot be used.
    """
    return importlib.import_module(_MAKERS[scheme]).make(dict(options))


def call(filesystem: Any, method: str, *args: Any, timeout: float, **kwargs: Any) -> Any:
    """What a method of a file system returns; an asynchronous one is cancelled when the time is over."""
    if getattr(filesystem, "async_impl", False):
        from fsspec.asyn import sync

        return sync(filesystem.loop, getattr(filesystem, f"_{method}"), *args, timeout=timeout, **kwargs)
    return getattr(filesystem, method)(*args, **kwargs)
