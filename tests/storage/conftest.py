"""Servers that the storage tests talk to: real protocol, this process, loopback only."""

import os
import secrets

import pytest

ACCESS = {"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "SECRETTESTSECRET"}


@pytest.fixture(scope="session")
def s3_server():
    """The address of a moto server."""
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def clean_environment(monkeypatch, tmp_path):
    """No credentials from this machine, and no look-ups that leave it."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "S3_", "AZURE_", "GOOGLE_", "DATABRICKS_", "GCSFS_", "STORAGE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
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
    from tests.storage.files_api_server import FilesApiServer

    server = FilesApiServer()
    clean_environment.setenv("DATABRICKS_HOST", server.url)
    clean_environment.setenv("DATABRICKS_TOKEN", server.token)
    yield server
    server.close()
