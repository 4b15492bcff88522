"""The hint of the version that was opened last: kept beside copies, and harmless whatever it holds."""

import pytest

from smalti.cache import CacheOptions
from smalti.storage import LocalStore
from smalti.stream.shard_set import VERSIONS_FOLDER, LastVersion
from tests.stores import MemoryStore


def files_of(folder):
    return list((folder / VERSIONS_FOLDER).iterdir())


def test_the_version_that_was_opened_last_is_remembered_by_address(tmp_path):
    options = CacheOptions(local=str(tmp_path))
    one, other = (LastVersion(MemoryStore(url=f"memory://{name}"), options) for name in ("one", "other"))
    assert one.read() is None
    one.write(3)
    one.write(4)
    assert (one.read(), other.read()) == (4, None)
    assert len(files_of(tmp_path)) == 1


def test_nothing_is_written_where_no_copies_lie_or_the_set_lies_on_this_machine(tmp_path):
    remote = MemoryStore()
    LastVersion(remote, CacheOptions(local=str(tmp_path / "absent"))).write(3)
    LastVersion(remote, CacheOptions(local=str(tmp_path), mirror=True)).write(3)
    LastVersion(LocalStore(tmp_path / "set"), CacheOptions(local=str(tmp_path))).write(3)
    LastVersion(remote, CacheOptions(local=str(tmp_path))).write(0)  # a plain set, which has no versions
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"x", b"-1", b"0", b"3.5", "٣".encode(), b"9" * 19, b"\xff\x00"])
def test_a_damaged_hint_is_no_hint(tmp_path, damage):
    hint = LastVersion(MemoryStore(), CacheOptions(local=str(tmp_path)))
    hint.write(3)
    files_of(tmp_path)[0].write_bytes(damage)
    assert hint.read() is None


def test_a_folder_in_place_of_the_hint_is_no_hint_and_no_error(tmp_path):
    hint = LastVersion(MemoryStore(), CacheOptions(local=str(tmp_path)))
    hint.write(3)
    (path,) = files_of(tmp_path)
    path.unlink()
    path.mkdir()
    hint.write(4)
    assert hint.read() is None
    assert files_of(tmp_path) == [path]


def test_a_link_in_place_of_the_hint_is_replaced_and_not_followed(tmp_path):
    hint, other = LastVersion(MemoryStore(), CacheOptions(local=str(tmp_path))), tmp_path / "other"
    hint.write(3)
    (path,) = files_of(tmp_path)
    path.unlink()
    other.write_text("of the user")
    path.symlink_to(other)
    hint.write(4)
    assert (hint.read(), other.read_text()) == (4, "of the user")
