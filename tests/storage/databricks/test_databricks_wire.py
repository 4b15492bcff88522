"""The requests to a workspace, and the handling of lost replies."""

import pytest

from smalti.errors import StoreAuthError, StoreError, StoreExists
from smalti.storage import UnfinishedUpload, open_store

MB = 1 << 20
DBFS = "dbfs:/FileStore/x"


def sent(server, verb):
    return [path for method, path in server.log if method == verb]


def test_a_range_of_dbfs_requests_no_more_bytes(files_api):
    store = open_store(DBFS)
    store.put("k", bytes(range(100)))
    files_api.log.clear()
    assert store.get_range("k", 10, 13) == b"\x0a\x0b\x0c"
    assert sent(files_api, "GET") == ["/api/2.0/dbfs/read"]


def test_ranges_across_blocks_are_joined(files_api):
    data = b"".join(bytes([n]) * MB for n in range(3)) + b"end"
    files_api.dbfs["/FileStore/x/k"] = data
    store = open_store(DBFS)
    assert store.get("k") == data
    assert store.get_range("k", MB - 2, 2 * MB + 1) == b"\0\0" + b"\1" * MB + b"\2"
    assert store.get_range("k", 3 * MB + 1, 9 * MB) == b"nd"


def test_a_small_object_of_dbfs_is_one_request(files_api):
    store = open_store(DBFS)
    for data in (b"", bytes(MB)):
        files_api.log.clear()
        store.put("k", data)
        assert [path for _, path in files_api.log if "dbfs" in path] == ["/api/2.0/dbfs/put"]
        assert store.get("k") == data


@pytest.mark.parametrize("call", ["create", "add-block", "move"])
def test_a_lost_reply_neither_doubles_a_block_nor_loses_the_file(files_api, call):
    """The SDK repeats the request: a block would be appended twice, a rename find its target."""
    data = bytes(range(256)) * (5 * MB // 512)
    store = open_store(DBFS)
    files_api.drop_reply_to = {f"/api/2.0/dbfs/{call}"}
    store.put("k", data)
    assert files_api.drop_reply_to == set()
    assert store.get("k") == data
    assert [info.key for info in store.list()] == ["k"]
    assert set(files_api.dbfs) == {"/FileStore/x/k"}


def test_a_rename_whose_reply_was_lost_succeeds(files_api):
    store = open_store(DBFS)
    files_api.drop_reply_to = {"/api/2.0/dbfs/move"}
    store.put_if_absent("k", bytes(2 * MB))
    assert files_api.drop_reply_to == set()
    assert files_api.dbfs == {"/FileStore/x/k": bytes(2 * MB)}


def test_a_large_object_that_cannot_be_completed_leaves_nothing(files_api):
    store = open_store(DBFS, {"request_attempts": 1})
    store.put("k", b"old")
    files_api.refusals = {"/api/2.0/dbfs/close": [True]}
    with pytest.raises(StoreError):
        store.put("k", bytes(2 * MB))
    assert store.get("k") == b"old"
    assert set(files_api.dbfs) == {"/FileStore/x/k"}


def test_a_large_object_that_cannot_be_renamed_leaves_the_old_one(files_api):
    store = open_store(DBFS, {"request_attempts": 1})
    store.put("k", b"old")
    files_api.refusals = {"/api/2.0/dbfs/move": [False, True]}  # the second of two renames fails
    with pytest.raises(StoreError):
        store.put("k", bytes(2 * MB))
    assert files_api.dbfs == {"/FileStore/x/k": b"old"}


def test_a_large_object_replaces_a_large_one(files_api):
    store = open_store(DBFS)
    for data in (b"1" * 2 * MB, b"2" * 3 * MB):
        store.put("k", data)
        assert store.get("k") == data
    assert set(files_api.dbfs) == {"/FileStore/x/k"}


def test_a_large_exclusive_put_on_dbfs_does_not_replace_the_first(files_api):
    store = open_store(DBFS)
    store.put("k", b"first")
    with pytest.raises(StoreExists):
        store.put_if_absent("k", bytes(2 * MB))
    assert store.get("k") == b"first"
    assert set(files_api.dbfs) == {"/FileStore/x/k"}


def test_files_being_written_are_not_listed(files_api):
    store = open_store(DBFS)
    store.put("k", b"1")
    files_api.dbfs["/FileStore/x/.big.0123.smalti-tmp"] = b"half"
    files_api.changed["/FileStore/x/.big.0123.smalti-tmp"] = 0
    assert [info.key for info in store.list()] == ["k"]


def test_a_temporary_file_of_a_killed_writer_on_dbfs_is_found_and_removed(files_api):
    store = open_store(DBFS)
    store.put("w/k", b"1")
    left = "/FileStore/x/w/.big.0123456789abcdef.smalti-tmp"
    files_api.dbfs[left], files_api.changed[left] = b"half", 1e9
    found = [UnfinishedUpload("w/big", ".big.0123456789abcdef.smalti-tmp", 1e9, 4, is_temporary=True)]
    assert list(store.unfinished_uploads()) == found
    for _ in range(2):  # the second time is a no-op
        store.abort_upload(found[0])
    assert set(files_api.dbfs) == {"/FileStore/x/w/k"}


def test_temporary_files_on_a_mounted_volume_are_no_objects_to_the_api(files_api):
    store = open_store(f"dbfs:{files_api.volume}/set")
    store.put("w/k", b"1")
    left = f"{files_api.volume}/set/w/.k.0123456789abcdef.smalti-tmp"
    files_api.files[left], files_api.changed[left] = b"half", 1e9
    assert [info.key for info in store.list()] == ["w/k"]
    [found] = store.unfinished_uploads()
    assert (found.key, found.num_bytes) == ("w/k", 4)
    store.abort_upload(found)
    assert [info.key for info in store.list()] == ["w/k"]
    assert left not in files_api.files


def test_a_disabled_dbfs_root_is_named_in_the_error(files_api):
    files_api.fail_with = [403]
    with pytest.raises(StoreAuthError, match="refused"):
        open_store(DBFS).get("k")


@pytest.mark.slow
@pytest.mark.parametrize("offered", [True, False])
def test_a_large_file_is_uploaded_in_parts_if_supported(files_api, tmp_path, offered):
    files_api.takes_parts = offered
    with (tmp_path / "f").open("wb") as file:
        file.truncate(50 * MB)
        file.seek(0, 2)
        file.write(b"end")
    store = open_store(f"dbfs:{files_api.volume}/new")
    store.put_file("k", tmp_path / "f")
    name = f"{files_api.volume}/new/k"
    assert len(files_api.files[name]) == 50 * MB + 3
    assert files_api.files[name].endswith(b"\0end")
    parts = [path for path in sent(files_api, "PUT") if path.startswith("/signed/")]
    whole = [path for path in sent(files_api, "PUT") if path == f"/api/2.0/fs/files{name}"]
    assert (len(parts), len(whole)) == ((6, 0) if offered else (0, 1))


def test_a_server_that_sends_more_than_a_range_gives_the_right_bytes(files_api):
    store = open_store(f"dbfs:{files_api.volume}/x")
    store.put("k", b"0123456789")
    files_api.ranges = False
    assert store.get_range("k", 4, 6) == b"45"
    assert store.get_range("k", 8, 99) == b"89"
