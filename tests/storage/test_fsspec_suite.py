"""fsspec's own suite for file systems. Copies, gets and puts are the same code for volumes and the root of DBFS."""

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from smalti.storage.databricks.volumes import VolumesFileSystem
from tests.stores.repeated import few_of


class Volume(AbstractFixtures):
    @pytest.fixture
    def fs(self, files_api):
        return VolumesFileSystem()

    @pytest.fixture
    def fs_path(self, files_api):
        return f"{files_api.volume}/suite"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)


class Dbfs(Volume):
    @pytest.fixture
    def fs_path(self):
        return "/FileStore/suite"


# fmt: off
@pytest.mark.slow
class TestCopy(Volume, AbstractCopyTests):
    test_copy_glob_edge_cases = few_of(AbstractCopyTests.test_copy_glob_edge_cases, 0, 6)
@pytest.mark.slow
class TestGet(Volume, AbstractGetTests):
    test_get_glob_edge_cases = few_of(AbstractGetTests.test_get_glob_edge_cases, 2, 6)
@pytest.mark.slow
class TestPut(Volume, AbstractPutTests):
    test_put_glob_edge_cases = few_of(AbstractPutTests.test_put_glob_edge_cases, 4, 6)
class TestOpen(Volume, AbstractOpenTests): ...
class TestPipe(Volume, AbstractPipeTests): ...
class TestOpenOnDbfs(Dbfs, AbstractOpenTests): ...
class TestPipeOnDbfs(Dbfs, AbstractPipeTests): ...
# fmt: on
