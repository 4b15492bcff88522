"""The stores that addresses open, and addresses that are refused."""

import logging

import pytest

from smalti.errors import StoreAuthError, StoreError
from smalti.storage import FsspecStore, LocalStore, open_store
from smalti.storage.databricks.mount import FuseVolumeStore


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/data/set", "/data/set"),
        ("file:///data/a%20set", "/data/a set"),
        ("/data/../data/set/", "/data/set"),
    ],
)
def test_paths_open_folders(url, expected):
    store = open_store(url)
    assert isinstance(store, LocalStore)
    assert store.url == expected


@pytest.mark.parametrize("url", ["", "file:", "file://"])
def test_an_empty_address_is_refused(url):
    """It comes from an unset variable, and would read, or vacuum, the working folder."""
    with pytest.raises(StoreError, match=r'the address is empty .*The working folder is "\."'):
        open_store(url)


def test_a_file_address_with_a_login_is_refused_without_showing_it():
    with pytest.raises(StoreError, match="has no host") as caught:
        open_store("file://user:CANARY@host/data")
    assert "CANARY" not in f"{caught.value!r} {vars(caught.value)}"


@pytest.mark.parametrize("url", [None, 3, b"/data", ["a", "b"]])
def test_values_that_are_no_addresses_are_refused(url):
    with pytest.raises(TypeError, match=f"expected a path, a URL or a store, found {type(url).__name__}"):
        open_store(url)


def test_relative_paths_are_relative_to_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_store(".").root == tmp_path
    assert open_store("sub/x").root == tmp_path / "sub" / "x"
    assert open_store(tmp_path).root == tmp_path
    assert open_store("./s3:/x").root == tmp_path / "s3:" / "x"
    assert open_store("file:/x").url == "/x"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket/p", "gs://bucket/p"),
        ("az://container/p", "abfs://container/p"),
        ("abfss://container@account.dfs.core.windows.net/p", "abfs://container/p"),
        ("memory://x/y", "memory://x/y"),
        ("dbfs:/Volumes/c/s/v/p", "dbfs:/Volumes/c/s/v/p"),
        ("/Volumes/c/s/v/p", "dbfs:/Volumes/c/s/v/p"),
        ("dbfs:/FileStore/set/", "dbfs:/FileStore/set"),
        ("dbfs:///FileStore/set", "dbfs:/FileStore/set"),
    ],
)
def test_addresses_open_object_stores_and_connect_to_nothing(url, expected):
    store = open_store(url)
    assert isinstance(store, FsspecStore)
    assert store.url == expected
    assert store._connection.peek() is None


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://host/x", "unknown scheme"),
        ("s3://key:CANARY@bucket/x", "no user or password"),
        ("s3:///x", "bucket is missing"),
        ("az://c/p?sv=1&sig=CANARY", "no query"),
        ("dbfs:/Volumes/c/s/v/x?token=CANARY", "no query"),
        ("dbfs:/Volumes/c/s/v/x#token=CANARY", "no password, signature or token"),
        ("/Volumes/c/s/v/x?token=CANARY", "no password, signature or token"),
        ("https://host/x#sig=CANARY", "no fragment in an address of the web"),
        ("https://host/x?sig=CANARY", "no query.*a signature in an address is for one file"),
        ("https://user:CANARY@host/x", "no user or password.*the storage option `headers`"),
        ("s3://KEY:SECRET/CANARY@bucket/x", "no password, signature or token"),
        ("s3:/KEY:CANARY@bucket/x", "one slash is missing, expected s3://"),
        ("gs:/bucket/x", "one slash is missing, expected gs://"),
        ("dbfs:/Volumes/c", "catalog"),
        ("dbfs:/a/../x", "not allowed"),
        ("/Volumes/c/s", "catalog"),
        ("file://host/x", "host"),
        ("s3://bucket/../x", "not allowed"),
    ],
)
def test_bad_addresses_are_refused_without_showing_secrets(caplog, url, text):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StoreError, match=text) as caught:
        open_store(url)
    assert "CANARY" not in str(caught.value)
    assert "CANARY" not in str(caught.value.facts)
    assert "CANARY" not in caplog.text


def test_the_root_of_a_bucket_and_of_memory_lists_its_keys(s3_server, s3_bucket):
    import secrets

    bucket = open_store(f"s3://{s3_bucket}", {"endpoint_url": s3_server})
    bucket.put("a/b", b"1")
    assert [info.key for info in bucket.list()] == ["a/b"]
    assert [info.key for info in bucket.child("a").list()] == ["b"]
    memory, name = open_store("memory://"), secrets.token_hex(6)
    memory.put(f"{name}/k", b"1")
    assert [info.key for info in memory.list(name)] == [f"{name}/k"]
    assert f"{name}/k" in [info.key for info in memory.list()]


def test_a_mounted_volume_is_a_folder_whose_exclusive_puts_go_through_the_api(files_api, tmp_path, monkeypatch):
    """The mount has no hard links; the Files API decides who was first."""
    import os

    from smalti.errors import StoreExists

    store = FuseVolumeStore(str(tmp_path / "mount"))
    api = open_store(f"dbfs:{files_api.volume}/x")
    store._api = api

    def no_links(*args, **kwargs):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    store.put("plain", b"through the mount")
    assert (tmp_path / "mount" / "plain").read_bytes() == b"through the mount"
    store.put_if_absent("v", b"1")
    assert api.get("v") == b"1"
    with pytest.raises(StoreExists):
        store.put_if_absent("v", b"2")
    monkeypatch.delenv("DATABRICKS_TOKEN")
    store._api = FsspecStore("dbfs", f"{files_api.volume}/x")
    with pytest.raises(StoreAuthError, match=r"mount.*DATABRICKS_HOST and DATABRICKS_TOKEN"):
        store.put_if_absent("w", b"1")
