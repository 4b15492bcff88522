"""Missing credentials: the message names them, the ways to give them, and the processes that need them."""

import pytest

from smalti.errors import StoreAuthError
from smalti.storage import open_store
from tests.storage.servers.web_server import WebServer

NAMED = {
    "s3://bucket/set": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "`key`", "anon=True"),
    "s3a://bucket/set": ("AWS_ACCESS_KEY_ID", "S3_ENDPOINT_URL"),
    "oci://bucket@space/set": ("AWS_ACCESS_KEY_ID", "customer secret key", "OCI_REGION"),
    "gs://bucket/set": ("GOOGLE_APPLICATION_CREDENTIALS", "gcloud auth", "GCS_KEY", "`token`", "token='anon'"),
    "gcs://bucket/set": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "abfs://container/set": ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_CLIENT_SECRET", "anon=True"),
    "az://container/set": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    "dbfs:/Volumes/c/s/v/set": ("DATABRICKS_HOST", "DATABRICKS_TOKEN", "~/.databrickscfg"),
    "/Volumes/c/s/v/set": ("DATABRICKS_HOST", "DATABRICKS_TOKEN"),
    "sftp": ("COMPOSER_SFTP_KEY_FILE", "`password`", "COMPOSER_SFTP_KNOWN_HOSTS_FILE"),
    "hf": ("HF_TOKEN", "hf auth login", "`token`"),
    "http": ("`headers`", "Authorization"),
}


@pytest.fixture
def no_credentials(request, clean_environment, tmp_path):
    """An environment without credentials of any kind."""
    clean_environment.setenv("OCI_REGION", "eu-frankfurt-1")
    clean_environment.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    clean_environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    clean_environment.setenv("PATH", str(tmp_path))  # hides `az` and `gcloud`, which may be logged in
    clean_environment.delenv("SSH_AUTH_SOCK", raising=False)
    return clean_environment


@pytest.mark.parametrize("address", NAMED)
def test_without_credentials_the_message_names_them_and_the_processes_that_need_them(request, no_credentials, address):
    with WebServer({}, token="a-login") as server:
        if address == "sftp":
            sftp = request.getfixturevalue("sftp")
            no_credentials.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(sftp.known_hosts))
            store = open_store(f"{sftp.url}/set")
        elif address == "hf":
            store = open_store("hf://datasets/owner/name", {"endpoint": server.url})
        elif address == "http":
            store = open_store(f"{server.url}/set")
        else:
            store = open_store(address)
        with pytest.raises(StoreAuthError) as caught:
            store.get("k")
    text = str(caught.value)
    assert [name for name in NAMED[address] if name not in text] == [], text
    assert "worker" in text, text
    assert "Spark" in text, text


def test_the_databricks_sdk_message_about_missing_credentials_is_explained(no_credentials):
    """With MosaicML's reader a worker only reports "default auth: cannot configure default credentials"."""
    no_credentials.setenv("DATABRICKS_HOST", "http://127.0.0.1:9")
    with pytest.raises(StoreAuthError, match=r"DATABRICKS_TOKEN.*notebook"):
        open_store("dbfs:/Volumes/c/s/v/set").get("k")


@pytest.mark.slow
def test_an_azure_account_name_alone_is_not_a_login(no_credentials):
    """adlfs would try a managed identity over the network, then `az`, then anonymous access."""
    no_credentials.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acct")
    no_credentials.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:9")  # a machine that is not Azure's
    with pytest.raises(StoreAuthError, match="AZURE_CLIENT_SECRET"):
        open_store("az://container/set", {"request_attempts": 1, "request_timeout": 60}).get("k")
