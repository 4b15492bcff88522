"""Row groups kept on a disk: read there again, checked, bounded, and without pickles."""

import os

import pyarrow as pa
import pytest

from smalti.compat.petastorm import make_batch_reader
from smalti.compat.petastorm.reading.rows import DiskCache
from tests.compat.parquet_files import flat, ids_of, url, write_rows

TABLE = pa.table({"x": range(1000)})


def never():
    raise AssertionError("it should be kept")


def test_a_second_reader_reads_from_the_disk_alone(tmp_path):
    where = write_rows(tmp_path / "set")
    options = {"cache_type": "local-disk", "cache_location": tmp_path / "kept", "cache_size_limit": 1 << 20, "seed": 1}
    with make_batch_reader(url(where), **options) as reader:
        first = flat(ids_of(reader))
    assert len(list((tmp_path / "kept").iterdir())) == 12
    with make_batch_reader(url(where), **options) as reader:
        for path in where.iterdir():
            path.unlink()
        assert flat(ids_of(reader)) == first


def test_a_damaged_table_is_made_again(tmp_path):
    cache = DiskCache(tmp_path, 1 << 20)
    cache.get("a", lambda: TABLE)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(AssertionError, match="should be kept"):
        cache.get("a", never)
    assert cache.get("a", lambda: TABLE).equals(TABLE)
    assert cache.get("a", never).equals(TABLE)


def test_the_oldest_tables_make_room(tmp_path):
    cache = DiskCache(tmp_path, 3 * 9000)
    for name in "abcde":
        cache.get(name, lambda: TABLE)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * 9000
    assert cache.get("e", never).equals(TABLE)


def test_what_a_killed_process_left_half_written_makes_room_as_the_oldest_tables_do(tmp_path):
    left = tmp_path / "0123456789abcdef.tmp"
    left.write_bytes(bytes(9000))
    os.utime(left, (1, 1))
    cache = DiskCache(tmp_path, 3 * 9000)
    for name in "abc":
        cache.get(name, lambda: TABLE)
    assert not left.exists()
    assert cache.get("a", never).equals(TABLE)


def test_a_table_larger_than_the_bound_is_not_kept(tmp_path):
    cache = DiskCache(tmp_path / "none", 100)
    assert cache.get("a", lambda: TABLE).equals(TABLE)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("cleanup", [True, False])
def test_the_folder_goes_with_the_reader_if_that_was_asked_for(tmp_path, cleanup):
    where = write_rows(tmp_path / "set", files=1)
    with make_batch_reader(
        url(where),
        cache_type="local-disk",
        cache_location=tmp_path / "kept",
        cache_size_limit=1 << 20,
        cache_extra_settings={"cleanup": cleanup},
    ) as reader:
        list(reader)
    assert (tmp_path / "kept").exists() is not cleanup
