"""Databricks addresses: through the mounted folder where the machine has one, by the workspace's API elsewhere.

Databricks compute mounts volumes at /Volumes and the root of DBFS at /dbfs: local folders, but for hard links.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smalti.errors import StoreAuthError, StoreError, StoreExists
from smalti.storage.local import LocalStore
from smalti.storage.object_store import FsspecStore
from smalti.storage.store import Store, Tagged, check_key, folder_of, join_key

VOLUMES = "/Volumes/"
DBFS_MOUNT = "/dbfs"

_log = logging.getLogger(__name__)


class FuseVolumeStore(LocalStore):
    """A mounted folder: bytes move through the mount, exclusive creation by the API, which can do it."""

    replaces_conditionally = False  # a lock of this host's says nothing to another's

    def __init__(self, root: str, options: Mapping[str, Any] | None = None, *, path: str | None = None) -> None:
        super().__init__(root)
        self._options = dict(options or {})
        self._path = path or str(self.root)
        self._api = FsspecStore("dbfs", self._path, self._options)

    def child(self, prefix: str) -> "FuseVolumeStore":
        """The store of a folder below this one."""
        folder = folder_of(prefix)
        return FuseVolumeStore(str(self.root / folder), self._options, path=join_key(self._path, folder))

    def get_tagged(self, key: str) -> Tagged:
        """Refused."""
        return Store.get_tagged(self, key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Refused."""
        return Store.put_if_match(self, key, data, etag)

    def _link(self, temp: Path, path: Path, key: str) -> None:
        try:
            super()._link(temp, path, key)
        except StoreError as refused:
            try:
                self._api.put_if_absent(key, temp.read_bytes())
            except StoreExists:
                raise
            except StoreAuthError as error:
                raise StoreAuthError(
                    f"{path}: this mount cannot create a file exclusively, and the workspace's API, which can, "
                    f"is not reachable: {error}",
                    key=key,
                    url=self.url,
                ) from refused


def is_databricks(text: str, mounts: Path = Path("/")) -> bool:
    """Whether an address means files of a Databricks workspace; /dbfs only where something is mounted there."""
    if text.startswith(f"{DBFS_MOUNT}/"):
        return _at(mounts, DBFS_MOUNT).is_dir()
    return text.startswith(("dbfs:", VOLUMES))


def open_databricks(text: str, options: Mapping[str, Any] | None, mounts: Path = Path("/")) -> Store:
    """The store of `dbfs:/...`, `/Volumes/...` or `/dbfs/...`; its `url` and the log say which way it goes.

    Args:
        text: The address.
        options: For the API: host, token and the like.
        mounts: Below which folder Databricks mounts.

    Raises:
        StoreError: the address names no volume.
    """
    path = "/" + text.removeprefix("dbfs:").removeprefix(f"{DBFS_MOUNT}/").strip("/")
    check_key(path[1:], allow_root=True)
    parts = path.split("/")[1:]
    if f"{path}/".startswith(VOLUMES):
        # On macOS /Volumes holds disks: the catalog's folder tells.
        folder, is_mounted = _at(mounts, path), len(parts) > 1 and _at(mounts, "/".join(parts[:2])).is_dir()
        if len(parts) < 4 and not is_mounted:
            raise StoreError(f"{path}: expected /Volumes/<catalog>/<schema>/<volume>/...", url=path)
    else:
        folder, is_mounted = _at(mounts, DBFS_MOUNT + path), _at(mounts, DBFS_MOUNT).is_dir()
    if is_mounted:
        _log.info("%s: through the mounted folder %s", text, folder)
        return FuseVolumeStore(str(folder), options, path=path)
    _log.info("%s: by the workspace's API, nothing is mounted here", text)
    return FsspecStore("dbfs", path, options)


def _at(mounts: Path, path: str) -> Path:
    return mounts / path.strip("/")
