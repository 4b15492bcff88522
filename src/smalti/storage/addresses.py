"""What an address says: the scheme, the folder as its file system names it, and the settings that it implies; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from smalti.errors import StoreError
from smalti.storage.filesystems import SCHEMES
from smalti.storage.hub import split_address
from smalti.storage.keys import check_key
from smalti.storage.oci import fill_oci
from smalti.storage.redact import redact, redact_address


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
