"""The contract of stores on the root of DBFS, on mounts, and on a volume with uploads in parts."""

import pytest

from smalti.storage import Store, open_store
from smalti.storage.databricks.mount import open_databricks
from tests.stores import LargeStoreContract, StoreContract


class DbfsRoot:
    """dbfs:/ outside /Volumes, by the DBFS API."""

    conditional_puts = False

    @pytest.fixture
    def store(self, files_api) -> Store:
        return open_store("dbfs:/FileStore/some/folder")


class VolumeInParts:
    """A workspace that signs addresses for the parts of large files."""

    conditional_puts = False

    @pytest.fixture
    def store(self, files_api) -> Store:
        files_api.takes_parts = True
        return open_store(f"dbfs:{files_api.volume}/some/folder")


class Mounted:
    """A mounted volume; this one has hard links."""

    conditional_puts = False

    @pytest.fixture
    def store(self, tmp_path) -> Store:
        (tmp_path / "Volumes" / "main").mkdir(parents=True)
        return open_databricks("dbfs:/Volumes/main/default/vol/some/folder", None, tmp_path)


# fmt: off
class TestDbfsRoot(DbfsRoot, StoreContract): ...
class TestMounted(Mounted, StoreContract): ...


@pytest.mark.slow
class TestMuchOnDbfsRoot(DbfsRoot, LargeStoreContract):
    num_keys = 30  # its listings have no pages
    num_bytes = (9 << 20) + 7  # ten blocks


@pytest.mark.slow
class TestMuchOnVolumeInParts(VolumeInParts, LargeStoreContract):
    num_keys = 7  # more than a page of this server; the rest is as on every volume
# fmt: on
