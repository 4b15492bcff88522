"""Scanning the cache's folder."""

from smalti.cache.files import SeenFiles, scan


def test_a_repeated_scan_sees_new_removed_and_replaced_files(tmp_path):
    seen = SeenFiles()
    (tmp_path / "w").mkdir()
    for name in ("gone", "kept", "replaced"):
        (tmp_path / "w" / name).write_bytes(b"12345")
    assert scan(tmp_path, seen).kept_bytes == 15
    (tmp_path / "w" / "gone").unlink()
    (tmp_path / "new").write_bytes(b"1")
    (tmp_path / "spare").write_bytes(b"12")
    (tmp_path / "spare").replace(tmp_path / "w" / "replaced")
    assert scan(tmp_path, seen).copies == {
        tmp_path / "w" / "kept": 5,
        tmp_path / "new": 1,
        tmp_path / "w" / "replaced": 2,
    }
    assert set(seen) == {str(tmp_path / name) for name in ("w/kept", "new", "w/replaced")}, "only copies are remembered"


def test_a_repeated_scan_sees_growing_locks_and_temporaries(tmp_path):
    seen = SeenFiles()
    (tmp_path / ".a.lock").touch()
    (tmp_path / ".a.1.abc.part").write_bytes(b"1")
    scan(tmp_path, seen)
    (tmp_path / ".a.lock").write_bytes(b"12345678")
    (tmp_path / ".a.1.abc.part").write_bytes(b"123")
    found = scan(tmp_path, seen)
    assert (found.locks, found.parts) == ({tmp_path / ".a.lock": 8}, {tmp_path / ".a.1.abc.part": 3})
    assert found.incoming_bytes == {tmp_path / ".a.lock": 8}


def test_a_fetch_counts_with_its_reservation_and_not_with_its_temporaries(tmp_path):
    """A shard of 6 bytes, unpacked from 4; the 6 stay."""
    (tmp_path / ".a.lock").write_bytes(b"123456")
    (tmp_path / ".b.lock").touch()
    for name in ("a", "b"):
        (tmp_path / f".{name}.1.abc.part").write_bytes(b"1234")
        (tmp_path / f".{name}.1.abc.raw.part").write_bytes(b"123456")
    asked, has_not_asked = tmp_path / ".a.lock", tmp_path / ".b.lock"
    assert scan(tmp_path).incoming_bytes == {asked: 6, has_not_asked: 10}


def test_quarantined_files_count_towards_the_limit(tmp_path):
    (tmp_path / ".bad-shard.1").write_bytes(b"1234")
    (tmp_path / "shard").write_bytes(b"12")
    found = scan(tmp_path)
    assert (found.kept_bytes, list(found.bad)) == (6, [tmp_path / ".bad-shard.1"])
