"""Reading the first bytes of a shard while the rest is being fetched; see `smalti.cache.transfer`."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from smalti.cache.files import lock_of
from smalti.errors import ChecksumMismatch, FormatError, StoreError
from smalti.format import FIRST_BYTES, Schema, ShardBuilder, ShardOptions
from tests.cache.conftest import DIGEST
from tests.stores import MemoryStore

MIB = 1 << 20
KEY = "w/shard.00000.mds"
LATE = 5
"""The first sample below that does not lie in the first bytes: they hold five and a part of the sixth."""


class GatedStore(MemoryStore):
    """A store that sends the first bytes of an object, and the rest when the gate is opened."""

    def __init__(self):
        super().__init__()
        self.gate, self.spans = threading.Event(), []

    def get_range(self, key, begin, end):
        self.spans.append((begin, end))
        if end > FIRST_BYTES:
            assert self.gate.wait(60)
        return super().get_range(key, begin, end)

    def fetch(self, key, out, *, on_chunk=None):
        data = self.objects[key]
        out.write(data[:FIRST_BYTES])
        assert self.gate.wait(60)
        out.write(data[FIRST_BYTES:])
        return len(data)


def text(row):
    """Return 1.5 MiB of the row's digits; twice that from row 10 on."""
    return f"{row}" * (3 * MIB // 2)


def built(rows=12, **options):
    builder = ShardBuilder(Schema.from_columns({"text": "str"}), ShardOptions(size_limit=None, **options))
    for row in range(rows):
        builder.add({"text": text(row)})
    (filled,) = builder.finish()
    shard = filled.seal()
    return shard.info.with_prefix("w"), bytes(shard.payloads[0])


@pytest.fixture
def gated():
    """A store with one shard of 21 MB, and its entry."""
    store, (info, data) = GatedStore(), built()
    store.put(KEY, data)
    return store, info


def test_a_shard_declares_the_hash_of_its_first_bytes():
    info, data = built()
    assert FIRST_BYTES == 8 * MIB
    assert info.raw.first_hash == xxhash.xxh3_64(data[: 8 * MIB]).intdigest()


@pytest.mark.parametrize(
    ("rows", "options"),
    [(5, {}), (12, {"compression": "zstd"}), (12, {"hashes": ("sha256",)}), (12, {"hashes": ("sha256", "xxh3_64")})],
    ids=["short", "compressed", "sha256", "two"],
)
def test_short_compressed_and_differently_hashed_shards_declare_no_first_hash(rows, options):
    info, _ = built(rows, **options)
    assert info.raw.first_hash is None


def test_samples_in_the_first_bytes_are_read_before_the_rest_arrives(gated, make_cache):
    store, info = gated
    cache = make_cache(store, [info])
    assert cache.shard(0, 4)[4] == {"text": text(4)}
    assert cache.shards([0], lambda: [np.array([1, 2])])[0][1] == {"text": text(1)}
    store.gate.set()
    assert cache.shard(0)[7] == {"text": text(7)}
    cache.close()


def test_the_first_bytes_are_requested_in_small_parts_and_none_twice(gated, make_cache):
    store, info = gated
    cache = make_cache(store, [info])
    cache.shard(0, 0)
    store.gate.set()
    cache.shard(0)
    small = [(0, 2 * MIB), (2 * MIB, 4 * MIB), (4 * MIB, 6 * MIB), (6 * MIB, 8 * MIB)]
    assert sorted(store.spans) == [*small, (8 * MIB, info.raw.num_bytes + 1)]
    cache.close()


def test_later_samples_of_an_incomplete_shard_are_refused(gated, make_cache):
    store, info = gated
    cache = make_cache(store, [info])
    early = cache.shard(0, 0)
    with pytest.raises(FormatError, match="sample 7"):
        early[7]
    with pytest.raises(FormatError, match="sample 7"):
        early.batch([0, 7])
    store.gate.set()
    cache.close()


def test_a_sample_behind_the_first_bytes_waits_for_the_whole_shard(gated, make_cache):
    store, info = gated
    cache = make_cache(store, [info])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.shard, 0, LATE)
        time.sleep(0.3)
        assert not waiting.done()
        store.gate.set()
        assert waiting.result(30)[LATE] == {"text": text(LATE)}
    cache.close()


def test_another_process_reads_the_first_bytes_that_the_first_one_fetches(gated, make_cache):
    store, info = gated
    mine, other = make_cache(store, [info]), make_cache(store, [info])
    assert mine.shard(0, 0)[0] == {"text": text(0)}
    assert other.shard(0, 3)[3] == {"text": text(3)}
    store.gate.set()
    assert [cache.shard(0)[7] for cache in (mine, other)] == [{"text": text(7)}] * 2
    assert len(store.spans) == 5, "the parts that the first one fetches, and nothing by the other"
    mine.close()
    other.close()


def test_first_bytes_that_are_not_the_declared_ones_are_never_read(make_cache):
    store, (info, data) = GatedStore(), built()
    store.put(KEY, data[: MIB + 1] + b"X" + data[MIB + 2 :])
    cache = make_cache(store, [info], retry=1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.shard, 0, 0)
        time.sleep(0.3)
        assert not waiting.done()
        store.gate.set()
        assert isinstance(waiting.exception(30), ChecksumMismatch)
    cache.close()


def test_an_early_read_stays_valid_when_the_rest_fails_and_the_next_request_raises(make_cache):
    store, (info, data) = GatedStore(), built()
    store.put(KEY, data)
    cache = make_cache(store, [info], retry=1)
    early = cache.shard(0, 1)
    store.put(KEY, data[:-1] + b"X")
    store.gate.set()
    with pytest.raises(ChecksumMismatch):
        cache.shard(0)
    assert early[1] == {"text": text(1)}
    cache.close()


def test_an_error_of_the_store_reaches_a_reader_that_waits_for_the_first_bytes(gated, make_cache):
    store, info = gated
    store.plant("*", key="*.mds", error=StoreError("503 of the test"))
    with pytest.raises(StoreError, match="503 of the test"):
        make_cache(store, [info], retry=1).shard(0, 0)


def test_a_lock_file_that_names_a_file_in_another_folder_is_ignored(gated, make_cache, tmp_path):
    store, info = gated
    cache = make_cache(store, [info])
    target = tmp_path / "cache" / DIGEST / info.raw.basename
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.shard, 0, LATE)
        while not lock_of(target).exists():
            time.sleep(0.01)
        (tmp_path / "outside").write_bytes(store.objects[KEY][:FIRST_BYTES])
        lock_of(target).write_text(f".{target.name}.1/../../../../outside.part")
        other = make_cache(store, [info])
        reading = pool.submit(other.shard, 0, 0)
        time.sleep(0.3)
        assert not reading.done()
        store.gate.set()
        assert waiting.result(30) is not None
        assert reading.result(30)[0] == {"text": text(0)}


def test_sets_without_first_hashes_are_read_whole(gated, make_cache):
    store, info = gated
    store.gate.set()
    plain = replace(info, raw=replace(info.raw, first_hash=None))
    assert plain == info, "the hash of the first bytes does not count in comparisons"
    assert make_cache(store, [plain]).shard(0, 0)[7] == {"text": text(7)}
