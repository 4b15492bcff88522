"""Downloaders and uploaders against servers that take seconds to start: Azure, Google and SFTP."""

import pytest

from smalti.compat.streaming.base.storage import CloudUploader, GCSUploader, download_file
from smalti.storage import open_store
from tests.storage.conftest import (  # noqa: F401  fixtures
    azurite_http,
    clean_environment,
    container,
    gcs_bucket,
    gcs_url,
    sftp,
)

pytestmark = [
    pytest.mark.nightly,
    # aiohttp warns of the large bodies that Azure's and Google's clients send; the warning is off by default.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]


def upload_and_list(uploader, tmp_path):
    for name in ("b", "a/x"):
        (tmp_path / "local" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "local" / name).write_text(name)
        uploader.upload_file(name)
    assert uploader.list_objects() == ["set/a/x", "set/b"]
    assert uploader.list_objects("a") == ["set/a/x"]


def download(address, tmp_path):
    download_file(f"{address}/a/x", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_text() == "a/x"
    with pytest.raises(FileNotFoundError):
        download_file(f"{address}/none", str(tmp_path / "none"))


@pytest.mark.parametrize("scheme", ["azure", "azure-dl"])
def test_azure_goes_there_and_back(azurite_http, container, clean_environment, tmp_path, scheme):  # noqa: F811
    clean_environment.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite_http.connection_string)
    host = f"{azurite_http.account}.blob.core.windows.net/" if scheme == "azure" else ""
    upload_and_list(CloudUploader.get((str(tmp_path / "local"), f"{scheme}://{container}/set")), tmp_path)
    download(f"{scheme}://{host}{container}/set", tmp_path)
    with pytest.raises(FileNotFoundError):
        CloudUploader.get((str(tmp_path / "other"), f"{scheme}://no-such-container/set"))


def test_google_goes_there(gcs_url, gcs_bucket, tmp_path):  # noqa: F811
    class Emulated(GCSUploader):
        def _open(self, remote):
            return open_store(remote, {"endpoint_url": gcs_url, "token": "anon"})

    upload_and_list(Emulated((str(tmp_path / "local"), f"gs://{gcs_bucket}/set")), tmp_path)
    with pytest.raises(FileNotFoundError, match="the bucket does not exist"):
        Emulated((str(tmp_path / "other"), "gs://no-such-bucket/set"))


def test_sftp_takes_the_password_of_an_address(sftp, clean_environment, tmp_path):  # noqa: F811
    clean_environment.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(sftp.known_hosts))
    place = f"{sftp.url}/set"
    open_store(place, {"password": sftp.password}).put("a/x", b"a/x")
    address = place.replace("@", f":{sftp.password}@", 1)
    download(address, tmp_path)
    with pytest.raises(FileNotFoundError) as error:
        download_file(f"{address}/none", str(tmp_path / "none"))
    assert sftp.password not in str(error.value)
