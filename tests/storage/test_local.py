"""Folders as stores: atomic puts, nothing outside the root, clear errors."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from smalti.errors import StoreAuthError, StoreError, StoreExists, StoreNotFound
from smalti.storage import LocalStore, UnfinishedUpload
from tests.storage.test_process import in_fork


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_objects_that_are_written_behind_in_several_parts_are_whole(tmp_path):
    store = LocalStore(tmp_path)
    data = bytes(range(256)) * (2**23 // 256) + b"the rest"
    store.put("synced", data)
    store.put_unsynced("unsynced", memoryview(data))
    assert store.get("synced") == store.get("unsynced") == data


def test_a_failed_write_leaves_the_old_object_and_no_temporary_file(tmp_path):
    store = LocalStore(tmp_path)
    store.put("k", b"old")
    with pytest.raises(TypeError):
        store.put("k", "not bytes")
    with pytest.raises(StoreNotFound):
        store.put_file("k", tmp_path / "absent")
    assert store.get("k") == b"old"
    assert names(tmp_path) == ["k"]


def test_temporary_files_are_not_listed(tmp_path):
    store = LocalStore(tmp_path)
    store.put("k", b"1")
    (tmp_path / ".k.0123.smalti-tmp").write_bytes(b"left by a killed process")
    assert [info.key for info in store.list()] == ["k"]


class KilledBeforeRename(LocalStore):
    """A store whose process ends in each put, before the temporary file is renamed."""

    def _rename(self, temp, *_):
        os.kill(os.getpid(), signal.SIGKILL)

    _link = _locked = _rename


PUTS = {
    "put": lambda store, file: store.put("w/k", b"12345"),
    "put_unsynced": lambda store, file: store.put_unsynced("w/k", b"12345"),
    "put_file": lambda store, file: store.put_file("w/k", file),
    "put_if_absent": lambda store, file: store.put_if_absent("w/k", b"12345"),
    "put_if_match": lambda store, file: store.put_if_match("w/k", b"12345", "etag"),
}


@pytest.mark.process
@pytest.mark.parametrize("put", PUTS)
def test_the_temporary_file_of_a_killed_put_is_found_and_removed(tmp_path, put):
    (tmp_path / "source").write_bytes(b"12345")
    root = tmp_path / "root"
    in_fork(lambda: PUTS[put](KilledBeforeRename(root), tmp_path / "source"))
    [left] = (root / "w").iterdir()
    os.utime(left, (1e9, 1e9))
    store = LocalStore(root)
    assert list(store.list()) == []
    [upload] = store.unfinished_uploads()
    assert upload == UnfinishedUpload("w/k", left.name, 1e9, 5, is_temporary=True)
    store.abort_upload(upload)
    store.abort_upload(upload)  # removed already: a no-op
    assert list((root / "w").iterdir()) == []


def test_only_names_made_by_the_store_are_temporary_files(tmp_path):
    store = LocalStore(tmp_path)
    names = [".k.0123456789abcdef.smalti-tmp.bak", ".k.0123456789ABCDEF.smalti-tmp", "k.0123456789abcdef.smalti-tmp"]
    dots = [f"{dots}.0123456789abcdef.smalti-tmp" for dots in ("", ".", "..", "...")]
    for name in [*names, ".k.0123.smalti-tmp", *dots]:
        (tmp_path / name).write_bytes(b"1")
    assert list(store.unfinished_uploads()) == []
    store.abort_upload(UnfinishedUpload("k", names[0], 0.0, is_temporary=True))
    assert (tmp_path / names[0]).exists()


@pytest.mark.parametrize("folder", [b"back\\slash", b"line\nend", b"\xff", b"a"])
def test_a_temporary_file_at_a_path_that_is_no_key_is_ignored(tmp_path, folder):
    """It could not be printed, or removed by its key."""
    place = os.path.join(os.fsencode(tmp_path), folder)
    os.mkdir(place)
    with open(os.path.join(place, b".k.0123456789abcdef.smalti-tmp"), "xb"):
        pass
    found = list(LocalStore(tmp_path).unfinished_uploads())
    assert [upload.key for upload in found] == (["a/k"] if folder == b"a" else [])


def test_temporary_files_are_listed_by_folder_and_never_removed_outside_the_root(tmp_path):
    name = ".k.0123456789abcdef.smalti-tmp"
    for folder in ("root/a", "root/b", "outside"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_bytes(b"1")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    store = LocalStore(tmp_path / "root")
    assert [each.key for each in store.unfinished_uploads()] == ["a/k", "b/k"]
    assert [each.key for each in store.unfinished_uploads("b")] == ["b/k"]
    assert [each.key for each in store.child("b").unfinished_uploads()] == ["k"]
    with pytest.raises(StoreError, match="symbolic link"):
        store.abort_upload(UnfinishedUpload("link/k", name, 0.0, is_temporary=True))
    assert (tmp_path / "outside" / name).exists()


def test_reads_follow_links_but_writes_never_leave_the_root(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(b"outside")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "f").symlink_to(tmp_path / "outside" / "f")
    store = LocalStore(root)
    assert store.get("link/f") == b"outside"
    for write in (
        lambda: store.put("link/new", b"1"),
        lambda: store.put_if_absent("link/new", b"1"),
        lambda: store.delete("link/f"),
    ):
        with pytest.raises(StoreError, match="symbolic link"):
            write()
    store.put("f", b"inside now")
    assert (tmp_path / "outside" / "f").read_bytes() == b"outside", "replaced the link, not what it points to"
    assert names(tmp_path / "outside") == ["f"]


def test_a_root_that_is_itself_a_link_works(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    store = LocalStore(tmp_path / "alias")
    store.put("a/b", b"1")
    assert (tmp_path / "real" / "a" / "b").read_bytes() == b"1"


def test_a_file_in_place_of_a_folder_is_named_in_the_error(tmp_path):
    store = LocalStore(tmp_path)
    store.put("a", b"1")
    with pytest.raises(StoreError, match="a/b"):
        store.put("a/b", b"1")
    with pytest.raises(StoreNotFound):
        store.get("a/b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_folder_without_permission_is_an_auth_error(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(StoreAuthError, match="permission"):
        LocalStore(tmp_path / "closed").put("k", b"1")


def test_a_file_system_without_hard_links_is_refused_with_advice(tmp_path):
    class NoLinks(LocalStore):
        def _link(self, temp, path, key):
            # A mount whose link(2) says EPERM, as vfat and several FUSE file systems do.
            original = os.link
            os.link = lambda *args, **kw: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted"))
            try:
                super()._link(temp, path, key)
            finally:
                os.link = original

    store = NoLinks(tmp_path)
    with pytest.raises(StoreError, match="hard links"):
        store.put_if_absent("v", b"1")
    assert names(tmp_path) == []


@pytest.mark.process
def test_a_killed_writer_never_leaves_a_partial_object(tmp_path):
    """SIGKILL at many moments of a loop of puts; every object found afterwards is complete."""
    script = textwrap.dedent(
        """
        import sys
        from smalti.storage import LocalStore
        store = LocalStore(sys.argv[1])
        print("go", flush=True)
        n = 0
        while True:
            n += 1
            body = (b"%08d" % n) * 50_000
            store.put("same", body)
            store.put_if_absent(f"v/{sys.argv[2]}-{n}", body)
        """
    )
    for turn in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "root"), str(turn)], stdout=subprocess.PIPE
        )
        process.stdout.readline()
        time.sleep(0.01 + 0.013 * turn)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        process.stdout.close()
    store = LocalStore(tmp_path / "root")
    found = list(store.list())
    assert len(found) > 8
    for info in found:
        data = store.get(info.key)
        assert len(data) == 400_000, info.key
        assert data == data[:8] * 50_000, info.key


def test_a_folder_does_not_exist_as_an_object(tmp_path):
    store = LocalStore(tmp_path)
    store.put("a/b", b"1")
    assert not store.exists("a")
    assert store.local_path("a/b").read_bytes() == b"1"


def test_put_if_absent_on_a_dangling_link_raises_exists(tmp_path):
    (tmp_path / "k").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreExists):
        LocalStore(tmp_path).put_if_absent("k", b"1")


def test_the_stores_own_folder_is_looked_up(tmp_path):
    LocalStore(tmp_path).check_folder()
    with pytest.raises(StoreNotFound, match="nowhere does not exist"):
        LocalStore(tmp_path / "nowhere").check_folder()


def test_links_that_lead_nowhere_or_to_themselves_are_no_objects(tmp_path):
    (tmp_path / "k").write_bytes(b"1")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    assert [item.key for item in LocalStore(tmp_path).list()] == ["k"]
    with pytest.raises(StoreError, match="Too many levels of symbolic links"):
        LocalStore(tmp_path).get("loop")


def test_a_file_in_place_of_the_root_is_named_when_something_is_put(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"/file is a file, and a folder is needed there"):
        LocalStore(tmp_path / "file").put("a/b", b"1")


def test_a_range_takes_the_memory_of_the_bytes_that_there_are(tmp_path):
    """A petabyte is more than any machine makes room for."""
    store = LocalStore(tmp_path)
    store.put("k", b"0123456789")
    assert store.get_range("k", 3, 1 << 50) == b"3456789"
    assert store.get_range("k", 20, 1 << 50) == b""
    assert store.get_limited("k", 1 << 50) == b"0123456789"
