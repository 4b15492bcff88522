"""The contract of stores on every backend that runs without a cloud; servers are real and on loopback."""

import secrets

import pytest

from smalti.storage import LocalStore, Store, open_store
from smalti.testing import MemoryStore, StoreContract


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path) -> Store:
        return LocalStore(tmp_path / "root")


class TestMemoryStore(StoreContract):
    pickles = False

    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestFsspecMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return open_store(f"memory://{secrets.token_hex(6)}/root")


class TestS3(StoreContract):
    """Real s3fs against moto; the endpoint comes from S3_ENDPOINT_URL."""

    @pytest.fixture
    def store(self, s3_server, s3_bucket, clean_environment) -> Store:
        clean_environment.setenv("S3_ENDPOINT_URL", s3_server)
        return open_store(f"s3://{s3_bucket}/some/prefix")


class TestVolumes(StoreContract):
    """The databricks SDK's client against a server that speaks the Files API."""

    @pytest.fixture
    def store(self, files_api) -> Store:
        return open_store(f"dbfs:{files_api.volume}/some/folder")
