"""What lies in a cache's folder, looked at again and again."""

from smalti.cache.contents import Known, scan


def test_a_second_look_sees_what_came_what_went_and_what_another_file_has_replaced(tmp_path):
    known = Known()
    (tmp_path / "w").mkdir()
    for name in ("gone", "kept", "replaced"):
        (tmp_path / "w" / name).write_bytes(b"12345")
    assert scan(tmp_path, known).kept == 15
    (tmp_path / "w" / "gone").unlink()
    (tmp_path / "new").write_bytes(b"1")
    (tmp_path / "spare").write_bytes(b"12")
    (tmp_path / "spare").replace(tmp_path / "w" / "replaced")
    assert scan(tmp_path, known).copies == {
        tmp_path / "w" / "kept": 5,
        tmp_path / "new": 1,
        tmp_path / "w" / "replaced": 2,
    }
    assert set(known) == {str(tmp_path / name) for name in ("w/kept", "new", "w/replaced")}, "nothing else is kept"


def test_locks_and_temporaries_are_looked_at_each_time_for_they_grow(tmp_path):
    known = Known()
    (tmp_path / ".a.lock").touch()
    (tmp_path / ".a.1.abc.part").write_bytes(b"1")
    scan(tmp_path, known)
    (tmp_path / ".a.lock").write_bytes(b"12345678")
    (tmp_path / ".a.1.abc.part").write_bytes(b"123")
    found = scan(tmp_path, known)
    assert (found.locks, found.parts) == ({tmp_path / ".a.lock": 8}, {tmp_path / ".a.1.abc.part": 3})
    assert found.coming == {tmp_path / ".a.lock": 8}


def test_what_was_put_aside_takes_room_too(tmp_path):
    (tmp_path / ".bad-shard.1").write_bytes(b"1234")
    (tmp_path / "shard").write_bytes(b"12")
    found = scan(tmp_path)
    assert (found.kept, list(found.bad)) == (6, [tmp_path / ".bad-shard.1"])
