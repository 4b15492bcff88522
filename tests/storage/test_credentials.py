"""No credentials, or refused ones: one message that says which, where, and that every process needs them."""

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
def nobody(request, clean_environment, tmp_path):
    """A process that has no credentials of any kind, and files of nobody."""
    clean_environment.setenv("OCI_REGION", "eu-frankfurt-1")
    clean_environment.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    clean_environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    clean_environment.setenv("PATH", str(tmp_path))  # no `az`, no `gcloud`, whose login might be found
    clean_environment.delenv("SSH_AUTH_SOCK", raising=False)
    return clean_environment


@pytest.mark.parametrize("address", NAMED)
def test_without_credentials_the_message_says_which_where_and_that_every_process_needs_them(request, nobody, address):
    with WebServer({}, token="a-login") as server:
        if address == "sftp":
            sftp = request.getfixturevalue("sftp")
            nobody.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(sftp.known_hosts))
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


def test_the_known_words_of_databricks_are_explained(nobody):
    """ "default auth: cannot configure default credentials" is all that a worker of MosaicML's would say."""
    nobody.setenv("DATABRICKS_HOST", "http://127.0.0.1:9")
    with pytest.raises(StoreAuthError, match=r"DATABRICKS_TOKEN.*notebook"):
        open_store("dbfs:/Volumes/c/s/v/set").get("k")


@pytest.mark.slow
def test_an_account_of_azure_alone_is_no_login(nobody):
    """adlfs would try a managed identity over the network, then `az`, then nothing."""
    nobody.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acct")
    nobody.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:9")  # a machine that is not Azure's
    with pytest.raises(StoreAuthError, match="AZURE_CLIENT_SECRET"):
        open_store("az://container/set", {"request_attempts": 1, "request_timeout": 60}).get("k")
