"""Servers for the storage tests: real protocols, on loopback."""

import os
import secrets

import pytest

from tests.storage.servers.azurite import azurite
from tests.storage.servers.certificates import make_certificate
from tests.storage.servers.gcs_json import GcsJsonServer
from tests.storage.servers.gcs_server import gcs_server, make_bucket
from tests.storage.servers.s3_server import guarded_s3
from tests.storage.servers.sftp_server import sftp_server

ACCESS = {"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "SECRETTESTSECRET"}
PRIVATE = (
    "AWS_", "S3_", "AZURE_", "GOOGLE_", "GCS_", "GCSFS_", "DATABRICKS_", "STORAGE_", "OCI_", "HF_", "COMPOSER_",
    "MOSAICML_", "IDENTITY_", "MSI_", "IMDS_",
)  # fmt: skip


@pytest.fixture(scope="session")
def s3_server():
    """The address of a moto server in this process, without checks of signatures and rights."""
    import moto.server

    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def clean_environment(monkeypatch, tmp_path):
    """An environment without this machine's credentials, and without metadata services."""
    for name in list(os.environ):
        if name.startswith(PRIVATE):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return monkeypatch


@pytest.fixture
def s3_bucket(s3_server, clean_environment):
    """A fresh bucket; credentials are in the environment."""
    import boto3

    for name, value in ACCESS.items():
        clean_environment.setenv(name, value)
    bucket = f"b-{secrets.token_hex(6)}"
    client = boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1")
    client.create_bucket(Bucket=bucket)
    return bucket


@pytest.fixture
def files_api(clean_environment):
    """A Files API server with one empty volume; host and token are in the environment."""
    from tests.storage.servers.files_api_server import FilesApiServer

    server = FilesApiServer()
    clean_environment.setenv("DATABRICKS_HOST", server.url)
    clean_environment.setenv("DATABRICKS_TOKEN", server.token)
    yield server
    server.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate for loopback, and its authority."""
    return make_certificate(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def guarded_server(certificate):
    """An S3 server that checks signatures and rights, over http and https."""
    with guarded_s3(certificate) as server:
        yield server


@pytest.fixture
def guarded_bucket(guarded_server, clean_environment):
    """A fresh bucket; credentials of a user with rights on it are in the environment."""
    bucket = f"free-{secrets.token_hex(6)}"
    with guarded_server.unguarded():
        guarded_server.admin("s3").create_bucket(Bucket=bucket)
    clean_environment.setenv("AWS_ACCESS_KEY_ID", guarded_server.key)
    clean_environment.setenv("AWS_SECRET_ACCESS_KEY", guarded_server.secret)
    return bucket


@pytest.fixture(scope="session")
def azurite_http():
    """Azurite over http."""
    with azurite() as server:
        yield server


@pytest.fixture(scope="session")
def azurite_https(certificate):
    """Azurite over https."""
    with azurite(certificate) as server:
        yield server


@pytest.fixture
def container(azurite_http, clean_environment):
    """A fresh container of the http server; the environment has no credentials."""
    return azurite_http.make_container()


@pytest.fixture
def secure_container(azurite_https, certificate, clean_environment):
    """A fresh container of the https server, whose certificate is trusted; the environment has no credentials."""
    import aiohttp.connector

    # aiohttp reads SSL_CERT_FILE when it is imported; test_azure.py tests the variable in a new process.
    aiohttp.connector._SSL_CONTEXT_VERIFIED.load_verify_locations(str(certificate.authority))
    return azurite_https.make_container(certificate.authority)


@pytest.fixture(scope="session")
def gcs_url():
    """The emulator's address."""
    with gcs_server() as url:
        yield url


@pytest.fixture
def gcs_bucket(gcs_url, clean_environment):
    """A fresh bucket; the environment has no credentials."""
    return make_bucket(gcs_url)


@pytest.fixture
def gcs_json(clean_environment):
    """A server of Google's JSON API that honours conditions; the environment has no credentials."""
    with GcsJsonServer() as server:
        yield server


@pytest.fixture(scope="session")
def sftp(tmp_path_factory):
    """An SFTP server."""
    with sftp_server(tmp_path_factory.mktemp("sftp")) as server:
        yield server
