"""The contract of stores on servers that people run: Ceph's RADOS gateway, and OpenSSH."""

import secrets

import pytest

from smalti.cache import CacheOptions
from smalti.errors import StoreAuthError, StoreError
from smalti.storage import Store, open_store
from tests.stores import LargeStoreContract, StoreContract


class Ceph:
    """Signatures are checked. Ceph 16 compares If-Match with an ETag without quotes: the probe must find that out."""

    conditional_puts = False

    @pytest.fixture
    def store(self, gateway, bucket) -> Store:
        return open_store(f"s3://{bucket}/some/prefix", {"endpoint_url": gateway.http})


class CephOverHttps:
    """With checksums in trailers, as botocore sends them to AWS, every put would fail here."""

    conditional_puts = False

    @pytest.fixture
    def store(self, gateway, bucket, certificate, clean_environment) -> Store:
        clean_environment.setenv("AWS_CA_BUNDLE", str(certificate.authority))
        return open_store(f"s3://{bucket}/some/prefix", {"endpoint_url": gateway.https})


class OpenSsh:
    """Its rename refuses to replace, so one of many publishers wins."""

    conditional_puts = False

    @pytest.fixture
    def store(self, sshd, clean_environment) -> Store:
        clean_environment.setenv("COMPOSER_SFTP_KEY_FILE", str(sshd.key_file))
        clean_environment.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(sshd.known_hosts))
        clean_environment.delenv("SSH_AUTH_SOCK", raising=False)
        return open_store(f"{sshd.url}/{secrets.token_hex(6)}/some/folder")


# fmt: off
class TestCeph(Ceph, StoreContract): ...
class TestCephOverHttps(CephOverHttps, StoreContract): ...
class TestOpenSsh(OpenSsh, StoreContract): ...
class TestMuchOnCeph(Ceph, LargeStoreContract): ...
class TestMuchOnCephOverHttps(CephOverHttps, LargeStoreContract): ...
class TestMuchOnOpenSsh(OpenSsh, LargeStoreContract): ...
# fmt: on


def test_ceph_refuses_a_wrong_secret_and_anonymous_readers(gateway, bucket):
    wrong = {"endpoint_url": gateway.http, "key": gateway.key, "secret": "canarycanarycanary"}
    with pytest.raises(StoreAuthError) as caught:
        open_store(f"s3://{bucket}/set", wrong).get("k")
    assert "canary" not in f"{caught.value} {caught.value.__cause__!r}"
    with pytest.raises(StoreAuthError):
        open_store(f"s3://{bucket}/set", {"endpoint_url": gateway.http, "anon": True}).get("k")


def test_a_shard_set_is_written_to_ceph_and_read_back(gateway, bucket, clean_environment, tmp_path):
    """The whole way of a publisher and of a reader: probe, shards, manifest, index, cache."""
    from smalti import StreamingDataset
    from tests.shard_sets import write_set

    clean_environment.setenv("S3_ENDPOINT_URL", gateway.http)
    address = write_set(f"s3://{bucket}/set", 100)
    dataset = StreamingDataset(remote=address, cache=CacheOptions(local=str(tmp_path)), shuffle=False, batch_size=10)
    assert [sample["id"] for sample in dataset] == list(range(100))


def test_openssh_refuses_another_key(sshd, clean_environment, tmp_path):
    import asyncssh

    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "other"))
    clean_environment.setenv("COMPOSER_SFTP_KEY_FILE", str(tmp_path / "other"))
    clean_environment.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(sshd.known_hosts))
    with pytest.raises(StoreError):
        open_store(f"{sshd.url}/x").get("k")
