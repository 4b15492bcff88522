"""Downloaders and uploaders of single files: local folders, S3 and Databricks' volumes, with MosaicML's errors."""

import logging
import os
import pickle
from pathlib import Path

import pytest

from smalti.catalog import load_manifest
from smalti.compat.streaming.base.storage import (
    AlipanDownloader,
    AzureUploader,
    CloudDownloader,
    CloudUploader,
    GCSDownloader,
    GCSUploader,
    LocalDownloader,
    LocalUploader,
    S3Downloader,
    S3Uploader,
    SFTPDownloader,
    download,
    download_file,
    upload,
)
from smalti.compat.streaming.base.util import merge_index
from tests.shard_sets import write_set
from tests.storage.conftest import clean_environment, files_api, s3_bucket, s3_server  # noqa: F401  fixtures


@pytest.fixture
def remote(tmp_path):
    """A folder with one file."""
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "shard.00000.mds").write_bytes(b"bytes")
    return folder


@pytest.fixture
def s3(s3_server, s3_bucket, monkeypatch):  # noqa: F811
    """A bucket, and a client of its server."""
    import boto3

    monkeypatch.setenv("S3_ENDPOINT_URL", s3_server)
    return s3_bucket, boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1")


# ------------------------------------------------------------------ downloads


@pytest.mark.parametrize("fetch", [download_file, CloudDownloader.direct_download, LocalDownloader().download])
def test_a_local_file_is_copied_and_its_folder_made(remote, tmp_path, fetch):
    fetch(str(remote / "shard.00000.mds"), str(tmp_path / "a" / "b" / "copy"), 60)
    assert (tmp_path / "a" / "b" / "copy").read_bytes() == b"bytes"
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["copy"]


def test_a_path_below_the_working_folder_is_copied(remote, tmp_path, monkeypatch):
    monkeypatch.chdir(remote)
    download_file("shard.00000.mds", "copy")
    assert (remote / "copy").read_bytes() == b"bytes"


def test_a_file_that_is_there_is_not_downloaded(tmp_path):
    (tmp_path / "here").write_bytes(b"old")
    download_file("s3://bucket/anything", str(tmp_path / "here"))
    download_file(None, str(tmp_path / "here"))
    assert (tmp_path / "here").read_bytes() == b"old"


@pytest.mark.parametrize("address", [None, ""])
def test_neither_a_file_nor_an_address_is_a_value_error(tmp_path, address):
    with pytest.raises(ValueError, match="In the absence of local dataset, path to remote dataset must be provided"):
        LocalDownloader().download(address, str(tmp_path / "x"))


def test_a_local_file_that_is_not_there_is_a_file_not_found_error_and_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        download_file(str(tmp_path / "nowhere"), str(tmp_path / "to" / "x"))
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        (None, "LocalDownloader"),
        ("/a/folder", "LocalDownloader"),
        ("s3://bucket/x", "S3Downloader"),
        ("gs://bucket/x", "GCSDownloader"),
        ("oci://bucket@namespace/x", "OCIDownloader"),
        ("sftp://host/x", "SFTPDownloader"),
        ("hf://datasets/owner/name/x", "HFDownloader"),
        ("azure://account.blob.core.windows.net/container/x", "AzureDownloader"),
        ("azure-dl://container/x", "AzureDataLakeDownloader"),
        ("dbfs:/Volumes/a/b/c/x", "DatabricksUnityCatalogDownloader"),
        ("dbfs:/x", "DBFSDownloader"),
        ("alipan:///x", "AlipanDownloader"),
    ],
)
def test_each_scheme_has_its_downloader(address, kind):
    found = CloudDownloader.get(address)
    assert type(found).__name__ == kind
    assert type(pickle.loads(pickle.dumps(found))) is type(found)
    found.clean_up()


@pytest.mark.parametrize("address", ["wasb://bucket/x", "file:///x"])
def test_an_unknown_scheme_is_a_value_error(address, tmp_path):
    with pytest.raises(ValueError, match=f"Unsupported remote path: {address}"):
        CloudDownloader.get(address)
    with pytest.raises(ValueError, match="Unsupported remote path"):
        download_file(address, str(tmp_path / "x"))


@pytest.mark.parametrize("kind", list(download.DOWNLOADER_MAPPINGS.values()))
def test_an_address_of_another_scheme_is_a_value_error(kind, tmp_path):
    with pytest.raises(ValueError, match=r"Expected (remote )?path"):
        kind().download("wasb://bucket/x", str(tmp_path / "x"))


def test_a_downloader_of_the_users_own_is_chosen_by_its_scheme(monkeypatch, tmp_path):
    class Mine(CloudDownloader):
        @staticmethod
        def _client_identifier():
            return "mine"

        def clean_up(self):
            pass

        def _download_file_impl(self, remote, local, timeout):
            Path(local).write_text(f"{remote} {timeout}")

    monkeypatch.setitem(download.DOWNLOADER_MAPPINGS, "mine", Mine)
    download_file("mine://x", str(tmp_path / "y"), 7)
    assert (tmp_path / "y").read_text() == "mine://x 7"
    assert download._register_cloud_downloader_subclasses() == download.DOWNLOADER_MAPPINGS
    with pytest.raises(TypeError, match="abstract"):
        CloudDownloader()


def test_an_s3_object_is_downloaded(s3, tmp_path):
    bucket, client = s3
    client.put_object(Bucket=bucket, Key="a/b", Body=b"of s3")
    client.put_object(Bucket=bucket, Key="top", Body=b"top")
    downloader = S3Downloader()
    downloader.download(f"s3://{bucket}/a/b", str(tmp_path / "b"), 30)
    downloader.clean_up()
    downloader.download(f"s3://{bucket}/top", str(tmp_path / "top"))
    assert [(tmp_path / name).read_bytes() for name in ("b", "top")] == [b"of s3", b"top"]
    with pytest.raises(FileNotFoundError, match=f"cannot read s3://{bucket}/a/none"):
        downloader.download(f"s3://{bucket}/a/none", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_file_of_a_volume_goes_there_and_back(files_api, tmp_path):  # noqa: F811
    address = f"dbfs:{files_api.volume}/some/folder"
    uploader = CloudUploader.get((str(tmp_path / "local"), address))
    assert type(uploader).__name__ == "DatabricksUnityCatalogUploader"
    (tmp_path / "local" / "x").write_bytes(b"of a volume")
    uploader.upload_file("x")
    assert not (tmp_path / "local" / "x").exists()
    assert uploader.list_objects() == [f"{files_api.volume}/some/folder/x"]
    download_file(f"{address}/x", str(tmp_path / "x"))
    assert (tmp_path / "x").read_bytes() == b"of a volume"
    with pytest.raises(FileNotFoundError):
        CloudUploader.get((str(tmp_path / "other"), "dbfs:/Volumes/no/such/volume/x"))


def test_googles_credentials_are_needed_as_a_value_error(clean_environment, tmp_path):  # noqa: F811
    clean_environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    for use in (
        lambda: GCSDownloader().download("gs://bucket/x", str(tmp_path / "x")),
        lambda: GCSUploader((str(tmp_path / "local"), "gs://bucket/x")),
    ):
        with pytest.raises(ValueError, match="GOOGLE_APPLICATION_CREDENTIALS") as error:
            use()
        assert str(error.value).startswith(download.GCS_ERROR_NO_AUTHENTICATION)


def test_a_folder_of_dbfs_must_exist(files_api, tmp_path):  # noqa: F811
    files_api.dbfs_folders.add("/some")
    assert CloudUploader.get((str(tmp_path / "a"), "dbfs:/some")).dbfs_path == "/some"
    with pytest.raises(FileNotFoundError, match="Databricks File System path /none not found"):
        CloudUploader.get((str(tmp_path / "b"), "dbfs:/none"))


@pytest.mark.parametrize(("retry", "faults"), [(1, 1), (2, 2)])
def test_retry_is_the_number_of_attempts(files_api, tmp_path, retry, faults):  # noqa: F811
    uploader = CloudUploader.get((str(tmp_path / "a"), f"dbfs:{files_api.volume}/x"), keep_local=True, retry=retry)
    (tmp_path / "a" / "y").write_bytes(b"1")
    files_api.refusals[f"/api/2.0/fs/files{files_api.volume}/x/y"] = [True] * faults
    with pytest.raises(OSError, match="y"):
        uploader.upload_file("y")
    uploader.upload_file("y")
    assert files_api.files == {f"{files_api.volume}/x/y": b"1"}


def test_a_password_of_an_sftp_address_is_handed_on_and_never_shown():
    downloader = SFTPDownloader()
    for address in ("sftp://", "sftp://host/x?y=1", "sftp://host/x#y"):
        with pytest.raises(ValueError, match="URI"):
            downloader._validate_remote_path(address)
    store = downloader._open("sftp://user:pass%2Fword@host:2222/a", 60)
    assert store.url == "sftp://user@host:2222/a"
    assert "pass/word" in store._known_secrets()


def test_alipan_is_refused_after_its_address_is_checked(tmp_path, monkeypatch):
    with pytest.raises(ImportError, match="no store for it"):
        AlipanDownloader().download("alipan:///x/y", str(tmp_path / "y"))
    with pytest.raises(ValueError, match="Expected remote to be alipan:///path/to/some"):
        AlipanDownloader().download("alipan://host/y", str(tmp_path / "y"))
    with pytest.raises(ValueError, match="Expected remote to be alipan:///path/to/some"):
        CloudUploader.get("alipan://host/y")
    with pytest.raises(ImportError, match="no store for it"):
        CloudUploader.get("alipan:///y")
    monkeypatch.setenv("ALIPAN_ENCRYPT_TYPE", "rot13")
    with pytest.raises(ValueError, match=r"Invalid ALIPAN_ENCRYPT_TYPE: rot13.*`Simple`, `ChaCha20`, `AES256CBC`"):
        CloudUploader.get("alipan:///y")


# ------------------------------------------------------------------ uploads


def test_a_local_folder_alone_is_made_and_files_stay_in_it(tmp_path):
    uploader = CloudUploader.get(str(tmp_path / "out"))
    assert type(uploader) is LocalUploader
    assert (uploader.local, uploader.remote) == (str(tmp_path / "out"), None)
    assert (uploader.keep_local, uploader.progress_bar, uploader.retry) == (False, False, 2)
    (tmp_path / "out" / "x").write_bytes(b"1")
    uploader.upload_file("x")
    assert (tmp_path / "out" / "x").exists()


@pytest.mark.parametrize("keep_local", [True, False])
def test_files_are_copied_to_the_second_folder_of_a_pair(tmp_path, keep_local):
    local, remote = tmp_path / "local", tmp_path / "remote"
    uploader = CloudUploader.get((str(local), str(remote)), keep_local=keep_local)
    assert remote.is_dir()
    (local / "sub").mkdir()
    for name in ("x", "sub/y"):
        (local / name).write_text(name)
        uploader.upload_file(name)
    assert (remote / "x").read_text() == "x"
    assert (remote / "sub" / "y").read_text() == "sub/y"
    assert (local / "x").exists() is keep_local


def test_local_files_are_listed_by_the_beginning_of_their_paths(tmp_path):
    uploader = LocalUploader(str(tmp_path))
    for name in ("b", "a1", "a/2", "c/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    root = str(tmp_path)
    assert uploader.list_objects() == [f"{root}/{name}" for name in ("a/2", "a1", "b", "c/a")]
    assert uploader.list_objects("a") == [f"{root}/a/2", f"{root}/a1"]
    assert uploader.list_objects("nothing") == []


def test_a_local_folder_with_contents_is_refused_unless_allowed(remote, caplog):
    with pytest.raises(FileExistsError, match="Directory is not empty"):
        CloudUploader.get(str(remote))
    with caplog.at_level(logging.WARNING):
        CloudUploader.get(str(remote), exist_ok=True)
    assert "is not empty" in caplog.text


@pytest.mark.parametrize("out", [("a",), ("a", "b", "c"), "wasb://bucket/x", ("a", "file:///x")])
def test_a_wrong_destination_is_a_value_error(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (CloudUploader.get, CloudUploader, S3Uploader):
        with pytest.raises(ValueError, match=r"Invalid `out` argument|Invalid Cloud provider prefix"):
            make(out)
    assert list(tmp_path.iterdir()) == []


def test_the_base_uploads_and_lists_nothing(tmp_path):
    uploader = CloudUploader(str(tmp_path / "x"))
    for use in (lambda: uploader.upload_file("x"), uploader.list_objects):
        with pytest.raises(NotImplementedError, match="CloudUploader"):
            use()


def test_a_remote_address_alone_gets_a_temporary_folder(s3, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bucket, client = s3
    uploader = CloudUploader.get(f"s3://{bucket}/set", keep_local=False)
    assert type(uploader) is S3Uploader
    assert uploader.remote == f"s3://{bucket}/set"
    assert os.path.dirname(uploader.local) == str(tmp_path)
    Path(uploader.local, "x").write_bytes(b"1")
    uploader.upload_file("x")
    assert client.get_object(Bucket=bucket, Key="set/x")["Body"].read() == b"1"
    assert os.listdir(uploader.local) == []


def test_objects_of_a_bucket_are_listed_by_their_keys(s3, tmp_path, capsys):
    bucket, client = s3
    for key in ("set/a1", "set/a/2", "set/b", "other"):
        client.put_object(Bucket=bucket, Key=key, Body=b"1")
    uploader = CloudUploader.get((str(tmp_path / "x"), f"s3://{bucket}/set"), progress_bar=True)
    assert uploader.list_objects() == ["set/a/2", "set/a1", "set/b"]
    assert uploader.list_objects("a") == ["set/a/2", "set/a1"]
    assert uploader.list_objects("a/") == ["set/a/2"]
    assert uploader.list_objects("none") == []
    (tmp_path / "x" / "y").write_bytes(b"123")
    uploader.upload_file("y")
    assert capsys.readouterr().err == f"Uploaded s3://{bucket}/set/y, 3 bytes\n"


def test_a_bucket_that_is_not_there_is_found_in_the_constructor_and_nothing_is_made(s3, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for out in ("s3://no-such-bucket/x", (str(tmp_path / "local"), "s3://no-such-bucket/x")):
        with pytest.raises(FileNotFoundError, match="the bucket does not exist"):
            CloudUploader.get(out)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there_and_no_attempts_are_errors(tmp_path):
    pair = (str(tmp_path / "a"), str(tmp_path / "b"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        CloudUploader.get(pair).upload_file("nowhere")
    with pytest.raises(ValueError, match="num_attempts must be at-least 1"):
        CloudUploader.get(pair, retry=0).upload_file("nowhere")


def test_a_cloud_uploader_needs_a_remote_folder(tmp_path):
    with pytest.raises(ValueError, match="S3Uploader needs a remote directory"):
        S3Uploader(str(tmp_path / "x"))


def test_azure_addresses_of_both_forms_name_the_container():
    uploader = object.__new__(AzureUploader)
    uploader.retry = 2
    assert uploader._open("azure://container/a/b").url == "abfs://container/a/b"
    assert uploader._open("azure://account.blob.core.windows.net/container/a").url == "abfs://container/a"


def test_the_hub_is_refused_with_the_command_that_stores_a_set_in_one_commit():
    with pytest.raises(NotImplementedError, match="hf upload"):
        CloudUploader.get("hf://datasets/owner/name/x")
    with pytest.raises(ValueError, match="Expected remote path to start with `hf://`"):
        upload.HFUploader("s3://bucket/x")


# ------------------------------------------------------------------ merge_index


def test_a_root_in_s3_is_merged(s3, tmp_path):
    bucket, client = s3
    for part in ("2", "10", "a/b"):
        write_set(tmp_path / "set" / part, 20)
    for path in sorted((tmp_path / "set").rglob("*.*")):
        client.upload_file(str(path), bucket, f"x/{path.relative_to(tmp_path / 'set')}")
    merge_index((str(tmp_path / "new"), f"s3://{bucket}/x"), keep_local=True)
    assert folders(f"s3://{bucket}/x") == ["10", "2", "a/b"]
    assert (tmp_path / "new" / "index.json").exists()
    pairs = [
        (str(tmp_path / "set" / part / "index.json"), f"s3://{bucket}/x/{part}/index.json") for part in ("2", "a/b")
    ]
    merge_index(pairs, f"s3://{bucket}/x")
    assert folders(f"s3://{bucket}/x") == ["2", "a/b"]


def folders(root):
    """Return the parts in the order of their shards, which are two folders below each part."""
    return list(dict.fromkeys(shard.raw.basename.rsplit("/", 3)[0] for shard in load_manifest(root).shards))
