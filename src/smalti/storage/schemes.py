"""Which module makes the file system of a scheme; they are imported here, when an address first needs one.

What an address says: the scheme, the folder as its file system names it, and the settings that it implies; pure.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from smalti.errors import StoreError
from smalti.storage.backends.hub import split_address
from smalti.storage.backends.oci import fill_oci
from smalti.storage.backends.s3 import fill_s3
from smalti.storage.extras import READ_SECONDS, load_extra
from smalti.storage.reader import call
from smalti.storage.redact import redact, redact_address
from smalti.storage.store import check_key

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
    "s3": "smalti.storage.backends.s3",
    "oci": "smalti.storage.backends.s3",
    "gs": "smalti.storage.backends.gcs",
    "abfs": "smalti.storage.backends.azure",
    "dbfs": "smalti.storage.databricks.volumes",
    "sftp": "smalti.storage.backends.sftp",
    "hf": "smalti.storage.backends.hub",
    "https": "smalti.storage.backends.web",
    "http": "smalti.storage.backends.web",
    "memory": "smalti.storage.backends.memory",
}


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


@dataclass(frozen=True)
class Address:
    """A parsed address of an object store or server."""

    scheme: str
    """Canonical, one of the values of `SCHEMES`."""
    root: str
    """The folder, as the file system of the scheme names it."""
    url: str
    """The address in one spelling, without secrets."""
    options: dict[str, Any] = field(default_factory=dict)
    """The caller's options, completed by what the address says."""


def parse_address(text: str, options: Mapping[str, Any] | None = None) -> Address:
    """The parts of `<scheme>://...`.

    Raises:
        StoreError: unknown scheme, no bucket or host, a password or a query, or a prefix that leaves the root.
    """
    written, _, rest = text.partition("://")
    shown = redact_address(text)
    scheme = SCHEMES.get(written)
    if scheme is None:
        known = ", ".join(f"{name}://" for name in sorted(SCHEMES) if name != "dbfs")
        raise StoreError(
            f"{shown}: unknown scheme {written!r}; expected a path, file://, dbfs:/Volumes/... or one of {known}",
            url=shown,
        )
    host, _, prefix = rest.partition("/")
    user, at, server = host.rpartition("@")
    if ":" in user or (at and written not in {"abfs", "abfss", "az", "azure-dl", "oci", "sftp", "ssh", "hf"}):
        raise StoreError(f"{shown}: no user or password in an address; give credentials as storage options", url=shown)
    check_secrets(text)
    if not (server or scheme == "memory") or (at and not user):
        raise StoreError(f"{shown}: the bucket is missing; expected {written}://bucket/prefix", url=shown)
    prefix = prefix.strip("/")
    check_key(prefix, allow_root=True)
    return _SPECIAL.get(scheme, _bucket)(scheme, host, prefix, dict(options or {}))


def check_secrets(address: str) -> None:
    """Refuse an address with a query, or with a password, signature or token anywhere: it would be shown.

    Raises:
        StoreError: it has one.
    """
    shown = redact_address(address)
    if "?" in address and not address.startswith("/"):
        raise StoreError(f"{shown}: no query in an address; give signatures and tokens as storage options", url=shown)
    if redact(address) != address:
        raise StoreError(
            f"{shown}: no password, signature or token in an address; give them as storage options", url=shown
        )


def _bucket(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    root = f"{host}/{prefix}".strip("/")
    return Address(scheme, root, f"{scheme}://{root}", options)


def _container(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """abfs://container/prefix, or abfs://container@account.dfs.core.windows.net/prefix."""
    container, at, account = host.partition("@")
    if at:
        options.setdefault("account_name", account.split(".")[0])
    return _bucket(scheme, container, prefix, options)


def _account(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:  # noqa: ARG001 -- one signature
    """MosaicML's azure://account.blob.core.windows.net/container/prefix: AZURE_ACCOUNT_NAME goes before the account."""
    if not prefix:
        raise StoreError(
            f"azure://{host}: the container is missing; expected azure://<account>/<container>/<prefix>",
            url=f"azure://{host}",
        )
    options.setdefault("fallback_account", host.split(".", maxsplit=1)[0])
    return Address("abfs", prefix, f"abfs://{prefix}", options)


def _oracle(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """oci://bucket@namespace/prefix."""
    bucket, _, namespace = host.partition("@")
    root = f"{bucket}/{prefix}".strip("/")
    return Address(scheme, root, f"{scheme}://{host}/{prefix}".rstrip("/"), fill_oci(namespace, options))


def _server(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """sftp://user@host:port/absolute/path."""
    user, at, name = host.rpartition("@")
    name, colon, port = name.partition(":")
    if colon and not port.isdigit():
        raise StoreError(f"{scheme}://{host}: the port is not a number", url=f"{scheme}://{host}")
    options.setdefault("host", name)
    if at:
        options.setdefault("username", user)
    if colon:
        options.setdefault("port", int(port))
    return Address(scheme, f"/{prefix}".rstrip("/"), f"{scheme}://{host}/{prefix}".rstrip("/"), options)


def _web(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """https://host:port/path; the path may be percent-encoded, as a browser shows it."""
    url = f"{scheme}://{host}/{unquote(prefix)}".rstrip("/")
    return Address(scheme, url, url, options)


def _hub(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """hf://datasets/owner/name[@revision]/folder."""
    address = _bucket(scheme, host, prefix, options)
    split_address(address.root)
    return address


_SPECIAL = {
    "abfs": _container, "azure": _account, "oci": _oracle, "sftp": _server, "hf": _hub, "https": _web, "http": _web,
}  # fmt: skip
