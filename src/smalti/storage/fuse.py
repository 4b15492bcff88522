"""Unity Catalog volumes as Databricks mounts them at /Volumes: a local folder, except that it has no hard links."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smalti.errors import StoreAuthError, StoreError, StoreExists
from smalti.storage.keys import folder_of
from smalti.storage.local import LocalStore
from smalti.storage.remote import FsspecStore


class FuseVolumeStore(LocalStore):
    """A mounted volume: bytes move through the mount, exclusive creation through the Files API, which can do it."""

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(root)
        self._options = dict(options or {})
        self._api = FsspecStore("dbfs", str(self.root), self._options)

    def child(self, prefix: str) -> "FuseVolumeStore":
        """The store of a folder below this one."""
        return FuseVolumeStore(str(self.root / folder_of(prefix)), self._options)

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
                    f"{path}: the mount of this volume cannot create a file exclusively, and the Files API, "
                    "which can, "
                    f"is not reachable: {error}",
                    key=key,
                    url=self.url,
                ) from refused
