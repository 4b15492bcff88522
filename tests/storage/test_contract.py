"""The contract of stores, for every kind of store against a server on loopback."""

import secrets
from collections.abc import Iterator

import pytest

from smalti.storage import LocalStore, Store, open_store
from tests.storage.servers.gcs_json import GcsJsonServer
from tests.storage.servers.s3_server import PAGE
from tests.storage.servers.web_server import WebServer
from tests.stores import LargeStoreContract, MemoryStore, ReadContract, StoreContract
from tests.stores.repeated import nightly_but

# aiohttp warns of the large bodies that Azure's and Google's clients send; the warning is off by default.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


class Local:
    @pytest.fixture
    def store(self, tmp_path) -> Store:
        return LocalStore(tmp_path / "root")


class Fake:
    pickles = False

    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class FsspecMemory:
    @pytest.fixture
    def store(self) -> Store:
        return open_store(f"memory://{secrets.token_hex(6)}/root")


class S3:
    """Signatures and rights are checked; the endpoint and the keys come from the environment."""

    @pytest.fixture
    def store(self, guarded_server, guarded_bucket, clean_environment) -> Store:
        clean_environment.setenv("S3_ENDPOINT_URL", guarded_server.http)
        return open_store(f"s3://{guarded_bucket}/some/prefix")


class S3OverHttps:
    """A store with https that is not AWS."""

    @pytest.fixture
    def store(self, guarded_server, guarded_bucket, clean_environment) -> Store:
        clean_environment.setenv("AWS_CA_BUNDLE", str(guarded_server.authority))
        return open_store(f"s3://{guarded_bucket}/some/prefix", {"endpoint_url": guarded_server.https})


class S3WithChecksums:
    """A store like AWS: botocore sends checksums in trailers, which it only does over https."""

    @pytest.fixture
    def store(self, guarded_server, guarded_bucket, clean_environment) -> Store:
        clean_environment.setenv("AWS_CA_BUNDLE", str(guarded_server.authority))
        checks = {"request_checksum_calculation": "when_supported", "response_checksum_validation": "when_supported"}
        options = {"endpoint_url": guarded_server.https, "config_kwargs": checks}
        return open_store(f"s3://{guarded_bucket}/some/prefix", options)


class Oracle:
    """Oracle's S3-compatible endpoint."""

    @pytest.fixture
    def store(self, guarded_server, guarded_bucket) -> Store:
        return open_store(f"oci://{guarded_bucket}@space/some/prefix", {"endpoint_url": guarded_server.http})


class Azure:
    """Azurite by its connection string, from the environment."""

    @pytest.fixture
    def store(self, azurite_http, container, clean_environment) -> Store:
        clean_environment.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite_http.connection_string)
        return open_store(f"az://{container}/some/prefix")


class AzureOverHttps:
    """Azurite by the account's name and key, as adlfs reaches Azure itself."""

    @pytest.fixture
    def store(self, azurite_https, secure_container) -> Store:
        options = {
            "account_name": azurite_https.account,
            "account_key": azurite_https.key,
            "account_host": azurite_https.host,
        }
        return open_store(
            f"abfs://{secure_container}@{azurite_https.account}.dfs.core.windows.net/some/prefix", options
        )


class Google:
    """The emulator silently ignores conditions, which the store must detect."""

    exclusive_puts = conditional_puts = False

    @pytest.fixture
    def store(self, gcs_url, gcs_bucket) -> Store:
        return open_store(f"gs://{gcs_bucket}/some/prefix", {"endpoint_url": gcs_url, "token": "anon"})


class GoogleWithConditions:
    """A server that honours conditions as Google does."""

    @pytest.fixture
    def store(self, clean_environment) -> Iterator[Store]:
        with GcsJsonServer() as server:
            yield open_store("gs://bucket/some/prefix", server.options)


class GoogleByHmacKey:
    """MosaicML's GCS_KEY and GCS_SECRET, which select the S3-compatible endpoint."""

    @pytest.fixture
    def store(self, guarded_server, guarded_bucket, clean_environment) -> Store:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            clean_environment.delenv(name)
        clean_environment.setenv("GCS_KEY", guarded_server.key)
        clean_environment.setenv("GCS_SECRET", guarded_server.secret)
        options = {"endpoint_url": guarded_server.http, "client_kwargs": {"region_name": "us-east-1"}}
        return open_store(f"gs://{guarded_bucket}/some/prefix", options)


class Volumes:
    """The databricks SDK's client against a server that speaks the Files API."""

    conditional_puts = False

    @pytest.fixture
    def store(self, files_api) -> Store:
        return open_store(f"dbfs:{files_api.volume}/some/folder")


class Sftp:
    """rclone's server, the key and the known hosts under MosaicML's names; its rename replaces, OpenSSH's does not."""

    exclusive_puts = conditional_puts = False

    @pytest.fixture
    def store(self, sftp, clean_environment) -> Store:
        clean_environment.setenv("COMPOSER_SFTP_KEY_FILE", str(sftp.key_file))
        clean_environment.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(sftp.known_hosts))
        return open_store(f"{sftp.url}/{secrets.token_hex(6)}/some/folder")


# fmt: off
class TestLocal(Local, StoreContract): ...
class TestMemoryStore(Fake, StoreContract): ...
class TestFsspecMemory(FsspecMemory, StoreContract): ...
class TestS3(S3, StoreContract): ...
@pytest.mark.nightly
@pytest.mark.slow
class TestS3OverHttps(S3OverHttps, StoreContract): ...
@nightly_but(
    "test_what_is_put_is_got", "test_put_file_stores_its_content", "test_put_if_absent_never_replaces",
    "test_a_conditional_put_replaces_what_was_read_and_nothing_else", "test_fetch_streams_the_whole_object",
)  # how bodies are sent and read; the rest is as in TestS3
@pytest.mark.slow
class TestS3WithChecksums(S3WithChecksums, StoreContract): ...
@pytest.mark.nightly  # the client of S3, as other classes have it; `backends` has what is its own
@pytest.mark.slow
class TestOracle(Oracle, StoreContract): ...
class TestAzure(Azure, StoreContract): ...
@nightly_but(
    "test_what_is_put_is_got", "test_a_missing_key_is_not_found", "test_list_is_recursive_sorted_and_exact",
    "test_put_if_absent_never_replaces",
)  # its address and login; the rest is as in TestAzure
class TestAzureOverHttps(AzureOverHttps, StoreContract): ...
class TestGoogle(Google, StoreContract): ...
class TestGoogleWithConditions(GoogleWithConditions, StoreContract): ...
@pytest.mark.nightly
@pytest.mark.slow
class TestGoogleByHmacKey(GoogleByHmacKey, StoreContract): ...
class TestVolumes(Volumes, StoreContract): ...
class TestSftp(Sftp, StoreContract): ...


@pytest.mark.slow
class TestMuchOnLocal(Local, LargeStoreContract):
    num_bytes = (21 << 20) + 7  # it has no parts
@pytest.mark.slow
class TestMuchOnS3(S3, LargeStoreContract):
    num_keys = 2 * PAGE + 3  # the server's pages are short
@pytest.mark.slow
class TestMuchOnAzure(Azure, LargeStoreContract):
    num_keys = 103  # Azurite's pages have 5,000
@pytest.mark.nightly  # a thousand puts into a slow emulator, for what the next class has with short pages
@pytest.mark.slow
class TestMuchOnGoogle(Google, LargeStoreContract): ...
@pytest.mark.slow
class TestMuchOnGoogleWithConditions(GoogleWithConditions, LargeStoreContract):
    num_keys, num_bytes = 103, (51 << 20) + 7  # its pages are short, and gcsfs uploads parts from 50 MiB on
@pytest.mark.slow
class TestMuchOnVolumes(Volumes, LargeStoreContract):
    num_keys, num_bytes = 103, (51 << 20) + 7  # the server's pages have three keys; parts begin at 50 MiB
@pytest.mark.slow
class TestMuchOnSftp(Sftp, LargeStoreContract):
    num_keys, num_bytes = 103, (21 << 20) + 7  # a listing has no pages; it sends 32 KiB at a time
# fmt: on


class TestWeb(ReadContract):
    """https:// (here http) from a server with ranges."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        with WebServer({f"/sets/a b/{key}": data for key, data in cls.CONTENT.items()}) as server:
            yield server

    @pytest.fixture
    def filled(self, server) -> Store:
        return open_store(f"{server.url}/sets/a%20b")


class TestHub(ReadContract):
    """hf:// from a server with the Hub's addresses that requires a token."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        root = "/datasets/owner/name/resolve/v1"
        with WebServer({f"{root}/train/{key}": data for key, data in cls.CONTENT.items()}, token="hf_token1") as server:
            yield server

    @pytest.fixture
    def filled(self, server, clean_environment) -> Store:
        clean_environment.setenv("HF_ENDPOINT", server.url)
        clean_environment.setenv("HF_TOKEN", "hf_token1")
        return open_store("hf://datasets/owner/name@v1/train")

    def test_a_folder_lists_all_files_below(self, filled):
        assert [(info.key, info.num_bytes) for info in filled.list()] == sorted(
            (key, len(data)) for key, data in self.CONTENT.items()
        )
        assert [info.key for info in filled.list("folder")] == ["folder/sub/b.bin"]
        assert list(filled.list("nothing")) == []
