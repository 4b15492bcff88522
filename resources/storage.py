"""The storage resource: one root on one backend, and the places below it where the assets keep things."""

from typing import Any

from pydantic import Field

from resources.backends import AzureBackend, GcsBackend, LocalBackend, S3Backend, VolumesBackend
from resources.lifetime import RunBoundResource
from smalti.storage import Store, open_store


class StorageResource(RunBoundResource):
    """Where images, tables and shard sets are kept, and the credentials to reach them."""

    backend: LocalBackend | S3Backend | GcsBackend | AzureBackend | VolumesBackend = Field(discriminator="kind")

    def url(self, *parts: str) -> str:
        """The address of a place below the root, for `open_store` and everything else in the library."""
        return "/".join([self.backend.root.rstrip("/"), *parts])

    def options(self) -> dict[str, Any]:
        """`storage_options` for the library: what fsspec needs beside the URL. Holds secrets: never log it."""
        return self.backend.options()

    def options_for(self, url: str) -> dict[str, Any]:
        """`storage_options` for another address: ours if it is on the same service, else none."""
        scheme, separator, _ = url.partition(":")
        ours, _, _ = self.backend.root.partition(":")
        return self.options() if separator and scheme == ours else {}

    def store(self, *parts: str) -> Store:
        """The library's store at a place below the root."""
        return open_store(self.url(*parts), self.options())
