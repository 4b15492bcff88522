"""Databricks addresses: by mount or API, and exclusive and conditional puts on mounts."""

import logging
import os

import pytest

from smalti.errors import StoreError, StoreExists, StoreNotFound
from smalti.storage import FsspecStore, LocalStore, open_store
from smalti.storage.databricks.mount import FuseVolumeStore, is_databricks, open_databricks

VOLUME = "/Volumes/main/default/vol/x"


@pytest.mark.parametrize(
    ("address", "folder"),
    [
        (f"dbfs:{VOLUME}", "Volumes/main/default/vol/x"),
        (VOLUME, "Volumes/main/default/vol/x"),
        ("dbfs:/FileStore/x", "dbfs/FileStore/x"),
        ("/dbfs/FileStore/x", "dbfs/FileStore/x"),
    ],
)
def test_a_mounted_folder_is_used_and_logged(tmp_path, caplog, address, folder):
    caplog.set_level(logging.INFO, "smalti.storage")
    (tmp_path / "Volumes" / "main").mkdir(parents=True)
    (tmp_path / "dbfs").mkdir()
    assert is_databricks(address, tmp_path)
    store = open_databricks(address, None, tmp_path)
    store.put("k", b"1")
    assert (tmp_path / folder / "k").read_bytes() == b"1"
    assert store.url == str(tmp_path / folder)
    assert f"through the mounted folder {tmp_path / folder}" in caplog.text


@pytest.mark.parametrize("address", [f"dbfs:{VOLUME}", VOLUME, "dbfs:/FileStore/x", "dbfs:///FileStore/x"])
def test_without_a_mount_the_api_is_used_and_logged(tmp_path, caplog, address):
    caplog.set_level(logging.INFO, "smalti.storage")
    store = open_databricks(address, None, tmp_path)
    assert isinstance(store, FsspecStore)
    assert store.url.startswith("dbfs:/")
    assert "by the workspace's API" in caplog.text


def test_a_macos_disk_is_not_a_catalog(tmp_path):
    """On macOS /Volumes contains disks."""
    (tmp_path / "Volumes" / "Macintosh HD").mkdir(parents=True)
    assert isinstance(open_databricks(VOLUME, None, tmp_path), FsspecStore)
    assert isinstance(open_databricks("/Volumes/Macintosh HD/set", None, tmp_path), FuseVolumeStore)


def test_without_a_mount_dbfs_is_an_ordinary_path(tmp_path):
    assert not is_databricks("/dbfs/x", tmp_path)
    assert type(open_store("/dbfs/x")) is LocalStore


@pytest.mark.parametrize(("address", "api"), [(VOLUME, VOLUME), ("dbfs:/FileStore/x", "/FileStore/x")])
def test_exclusive_puts_on_a_mount_go_through_the_api(files_api, tmp_path, monkeypatch, address, api):
    """The mount has no hard links. The object is at the same path of the workspace, also for a child store."""

    def no_links(*args, **kwargs):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "Volumes" / "main").mkdir(parents=True)
    (tmp_path / "dbfs").mkdir()
    store = open_databricks(address, None, tmp_path)
    store.put_if_absent("v", b"1")
    store.child("deep").put_if_absent("v", b"2")
    with pytest.raises(StoreExists):
        store.put_if_absent("v", b"3")
    stored = files_api.files | files_api.dbfs
    assert stored == {f"{api}/v": b"1", f"{api}/deep/v": b"2"}


def test_a_mount_refuses_conditional_puts(tmp_path):
    """A lock on this machine has no effect on others."""
    (tmp_path / "dbfs").mkdir()
    store = open_databricks("dbfs:/x", None, tmp_path)
    store.put("k", b"1")
    assert not store.replaces_conditionally
    with pytest.raises(StoreError, match="conditionally"):
        store.put_if_match("k", b"2", "1")
    assert store.get("k") == b"1"
    with pytest.raises(StoreNotFound):
        store.get("none")
