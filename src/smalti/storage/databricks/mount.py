"""The opening of Databricks addresses: as a mounted folder if the machine has one, else by the workspace's API.

Databricks compute mounts volumes at /Volumes and the root of DBFS at /dbfs, as local folders without hard links.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smalti.errors import StoreAuthError, StoreError, StoreExists
from smalti.redaction import HiddenOptions, redact_address
from smalti.regular_files import read_regular
from smalti.storage.local import LocalStore
from smalti.storage.object_store import FsspecStore
from smalti.storage.store import Store, Tagged, check_key, folder_of, join_key

VOLUMES = "/Volumes/"
DBFS_MOUNT = "/dbfs"

_log = logging.getLogger(__name__)


class FuseVolumeStore(LocalStore):
    """A mounted folder; exclusive puts go through the workspace's API, because mounts have no hard links."""

    replaces_conditionally = False  # locks of one host have no effect on others

    def __init__(self, root: str, options: Mapping[str, Any] | None = None, *, path: str | None = None) -> None:
        super().__init__(root)
        self._options = HiddenOptions(options or {})
        self._path = path or str(self.root)
        self._api = FsspecStore("dbfs", self._path, self._options)

    def child(self, prefix: str) -> "FuseVolumeStore":
        """Return the store of a folder below this one."""
        folder = folder_of(prefix)
        return FuseVolumeStore(str(self.root / folder), self._options, path=join_key(self._path, folder))

    def get_tagged(self, key: str) -> Tagged:
        """Raise `StoreError`: not supported."""
        return Store.get_tagged(self, key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Raise `StoreError`: not supported."""
        return Store.put_if_match(self, key, data, etag)

    def _link(self, temp: Path, path: Path, key: str) -> None:
        try:
            super()._link(temp, path, key)
        except StoreError as refused:
            try:
                self._api.put_if_absent(key, read_regular(temp))
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
    """Return whether an address is one of a Databricks workspace; `/dbfs` only if something is mounted there."""
    if text.startswith(f"{DBFS_MOUNT}/"):
        return _at(mounts, DBFS_MOUNT).is_dir()
    return text.startswith(("dbfs:", VOLUMES))


def open_databricks(text: str, options: Mapping[str, Any] | None, mounts: Path = Path("/")) -> Store:
    """Open `dbfs:/...`, `/Volumes/...` or `/dbfs/...`; the store's `url` and the log show whether by mount or API.

    `mounts` is the folder below which Databricks mounts.

    Raises:
        StoreError: the address names no volume.
    """
    path = "/" + text.removeprefix("dbfs:").removeprefix(f"{DBFS_MOUNT}/").strip("/")
    check_key(path[1:], allow_root=True)
    parts = path.split("/")[1:]
    if f"{path}/".startswith(VOLUMES):
        # On macOS /Volumes contains disks: look for the folder of the catalog.
        folder, is_mounted = _at(mounts, path), len(parts) > 1 and _at(mounts, "/".join(parts[:2])).is_dir()
        if len(parts) < 4 and not is_mounted:
            raise StoreError(f"{path}: expected /Volumes/<catalog>/<schema>/<volume>/...", url=path)
    else:
        folder, is_mounted = _at(mounts, DBFS_MOUNT + path), _at(mounts, DBFS_MOUNT).is_dir()
    if is_mounted:
        _log.info("%s: through the mounted folder %s", redact_address(text), folder)
        return FuseVolumeStore(str(folder), options, path=path)
    _log.info("%s: by the workspace's API, nothing is mounted here", redact_address(text))
    return FsspecStore("dbfs", path, options)


def _at(mounts: Path, path: str) -> Path:
    return mounts / path.strip("/")
