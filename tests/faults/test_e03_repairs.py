"""E3, E4, E14, E16: damaged copies are quarantined and fetched again; a shard repaired in the store is read."""

import errno
import io
import json
import os
import resource
import shutil

import pytest

from smalti.errors import ChecksumMismatch, FormatError, StoreError
from smalti.format.reading import files
from smalti.torch import StreamingDataLoader
from tests.faults.ways_of_reading import (
    ALONE_AND_THREADS,
    FEW_WAYS,
    SHARD,
    assert_exact,
    assert_fails,
    assert_resumes,
    cached,
    key_of,
    open_set,
    serve,
    written,
)
from tests.faultstore import Toxic

pytestmark = pytest.mark.torch

STORED = f"*{SHARD}*"


@pytest.mark.parametrize("way", ALONE_AND_THREADS)
def test_e3_a_corrupt_shard_is_not_read_after_a_restart(faults, tmp_path, way):
    serve(faults).plant(Toxic("corrupt", key=STORED))
    first = open_set(tmp_path)
    assert_fails(first, way, ChecksumMismatch, SHARD)
    first.close()
    assert f"{SHARD}.mds" not in cached(tmp_path), "never published"
    faults.heal()
    assert_exact(open_set(tmp_path), way)


@pytest.mark.parametrize("way", FEW_WAYS)
def test_e3_a_corrupt_copy_is_quarantined_and_fetched_once_more(faults, tmp_path, way):
    serve(faults)
    first = open_set(tmp_path)
    assert_exact(first, way)
    first.close()
    path = next((tmp_path / "cache").rglob(f"{SHARD}.mds"))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    faults.forget()
    assert_exact(open_set(tmp_path), way)
    assert [entry.key.split("/")[-1] for entry in faults.log("GET") if "shard." in entry.key] == [f"{SHARD}.mds"]
    assert f".bad-{SHARD}.mds" in cached(tmp_path)


@pytest.mark.parametrize("way", ALONE_AND_THREADS)
@pytest.mark.slow
def test_e4_a_compressed_shard_that_is_repaired_in_the_store_is_read_by_the_same_run(faults, tmp_path, way):
    key = "set/" + key_of(serve_zstd(faults), 3)
    good = faults.get(key)
    faults.put(key, good[:100] + bytes([good[100] ^ 255]) + good[101:])
    dataset = open_set(tmp_path)
    loader, taken = assert_fails(dataset, way, ChecksumMismatch, SHARD)
    faults.put(key, good)
    assert_resumes(loader, taken, compression="zstd")


def serve_zstd(faults):
    serve(faults, compression="zstd")
    return written(compression="zstd")


def bomb_set(tmp_path):
    """Write a set whose shard 3 unpacks to 64 MiB while its index declares 562 bytes; stored size and hash fit."""
    import xxhash
    import zstandard

    root = tmp_path / "bombs"
    shutil.copytree(written(compression="zstd"), root)
    bomb = zstandard.compress(bytes(64 << 20))
    index = json.loads((root / "index.json").read_text())
    shard = index["shards"][3]
    (root / shard["zip_data"]["basename"]).write_bytes(bomb)
    shard["zip_data"] |= {"bytes": len(bomb), "hashes": {"xxh3_64": xxhash.xxh3_64_hexdigest(bomb)}}
    index.pop("smalti", None)
    shutil.rmtree(root / "_versions")
    (root / "index.json").write_text(json.dumps(index))
    return root


@pytest.mark.parametrize("way", ALONE_AND_THREADS)
def test_e14_a_bomb_stops_at_the_declared_size(faults, tmp_path, way):
    """No process can write a file of a megabyte here, so that a bomb that unpacks would be another error."""
    faults.put_folder(bomb_set(tmp_path), "set/")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, most))
    try:
        assert_fails(open_set(tmp_path), way, FormatError, f"shard 3 .*{SHARD}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    sizes = [path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert max(sizes) < 10_000


@pytest.mark.parametrize("way", FEW_WAYS[:2])
def test_e16_a_cached_file_that_cannot_be_read_is_fetched_again(faults, tmp_path, way, monkeypatch):
    """The kernel's error is simulated for the inode of the copy; a new copy has another inode."""
    serve(faults)
    first = open_set(tmp_path)
    assert_exact(first, way)
    first.close()
    inode = next((tmp_path / "cache").rglob(f"{SHARD}.mds")).stat().st_ino
    fail_reads_of(monkeypatch, inode)
    faults.forget()
    assert_exact(open_set(tmp_path), way)
    assert [entry.key.split("/")[-1] for entry in faults.log("GET") if "shard." in entry.key] == [f"{SHARD}.mds"]


def fail_reads_of(monkeypatch, inode):
    """Have reads of a file fail with EIO while it is verified."""
    opened = files.open_regular

    class Unreadable(io.FileIO):
        def readinto(self, _):
            raise OSError(errno.EIO, "Input/output error")

    def failing(path, **options):
        file = opened(path, **options)
        if os.fstat(file.fileno()).st_ino != inode:
            return file
        with file:
            return Unreadable(os.dup(file.fileno()))

    monkeypatch.setattr(files, "open_regular", failing)


@pytest.mark.slow
def test_e16_a_copy_that_can_neither_be_read_nor_fetched_is_a_typed_error(faults, tmp_path, monkeypatch):
    serve(faults)
    first = open_set(tmp_path)
    assert_exact(first, {})
    first.close()
    fail_reads_of(monkeypatch, next((tmp_path / "cache").rglob(f"{SHARD}.mds")).stat().st_ino)
    faults.plant(Toxic("http", status=500, key=STORED))
    assert_fails(open_set(tmp_path, retry=1), {}, StoreError, f"shard 3 .*{SHARD}")
    faults.heal()
    again = open_set(tmp_path)
    assert len(list(StreamingDataLoader(again))) == 10
