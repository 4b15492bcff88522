"""From an address to a store: which scheme is which kind, and what is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from smalti.errors import StoreError
from smalti.storage.addresses import parse_address
from smalti.storage.fuse import FuseVolumeStore
from smalti.storage.interface import Store
from smalti.storage.keys import check_key
from smalti.storage.local import LocalStore
from smalti.storage.remote import FsspecStore

VOLUMES = "/Volumes/"

Place = Store | str | Path
"""Where something lies: a store, or the address of one."""


def open_store(url: Place, options: Mapping[str, Any] | None = None) -> Store:
    """The store at an address; nothing is read or connected before its first use.

    Args:
        url: A path, `file://`, `s3://bucket/prefix`, `gs://`, `abfs://container/prefix` (`az://`, `azure://`),
            `dbfs:/Volumes/<catalog>/<schema>/<volume>/...`, `/Volumes/...`, `sftp://user@host/path`,
            `oci://bucket@namespace/prefix`, `memory://`; to read alone `hf://datasets/owner/name` and `https://`.
            "" is the working folder. A store is handed back as it is. docs/storage.md has the credentials of each.
        options: Passed to the file system of the scheme (credentials, endpoint); see `FsspecStore`.

    Raises:
        StoreError: the address has an unknown scheme, a password, or no bucket.
    """
    if isinstance(url, Store):
        return url
    text = str(url)
    if text.startswith("dbfs:"):
        return _open_volume(_volume_path(text), options)
    if text.startswith(VOLUMES):
        return _open_volume(text, options)
    if "://" not in text:
        return LocalStore(text.removeprefix("file:") or ".")
    if text.startswith("file://"):
        parts = urlsplit(text)
        if parts.netloc not in {"", "localhost"}:
            raise StoreError(
                f"{text}: a file:// address has no host; write file:///{parts.netloc}{parts.path}", url=text
            )
        return LocalStore(unquote(parts.path))
    address = parse_address(text, options)
    return FsspecStore(address.scheme, address.root, address.options, url=address.url)


def _volume_path(text: str) -> str:
    path = "/" + text.removeprefix("dbfs:").lstrip("/")
    if not path.startswith(VOLUMES):
        raise StoreError(
            f"{text}: below dbfs: only Unity Catalog volumes are supported; "
            "expected dbfs:/Volumes/<catalog>/<schema>/<volume>/...",
            url=text,
        )
    return path


def _open_volume(path: str, options: Mapping[str, Any] | None) -> Store:
    """The mounted folder when there is one (Databricks compute; on macOS /Volumes holds disks), else the Files API."""
    parts = path.strip("/").split("/")
    check_key("/".join(parts))
    if len(parts) > 1 and Path("/", *parts[:2]).is_dir():
        return FuseVolumeStore(path, options)
    if len(parts) < 4:
        raise StoreError(f"{path}: expected /Volumes/<catalog>/<schema>/<volume>/...", url=path)
    return FsspecStore("dbfs", path, options)
