"""Fixtures: real shards in a store, and a cache over them in a temporary folder."""

from dataclasses import replace

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.storage import Store
from tests.stores import MemoryStore

COLUMNS = {"id": "int64", "text": "str"}
DIGEST = "d" * 64


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class SlowStore(MemoryStore):
    """A store that sends `num_bytes` in each `seconds` of a clock."""

    def __init__(self, clock, num_bytes, seconds):
        super().__init__()
        self._clock, self._num_bytes, self._seconds = clock, num_bytes, seconds

    def fetch(self, key, out, *, on_chunk=None):
        data = self.get(key)
        for begin in range(0, len(data), self._num_bytes):
            self._clock.now += self._seconds
            out.write(data[begin : begin + self._num_bytes])
        return len(data)


@pytest.fixture
def fill():
    """Write shards of `rows` samples below `train/w/` and return their infos."""

    def write(store: Store, rows: int = 40, *, compression: str | None = None, hashes=("xxh3_64",)):
        builder = ShardBuilder(
            Schema.from_columns(COLUMNS), ShardOptions(compression=compression, hashes=hashes, size_limit=380)
        )
        built = [shard for row in range(rows) for shard in builder.add({"id": row, "text": f"row {row}"})]
        infos = []
        for shard in [filled.seal() for filled in built + builder.finish()]:
            info = replace(shard.info.with_prefix("train/w/0"), partition="train")
            store.put(info.stored.basename, bytes(shard.payloads[0]))
            infos.append(info)
        assert len(infos) > 3
        return infos

    return write


@pytest.fixture
def put_large():
    """Write a shard of three samples of 6 MiB, and return its info."""

    def write(store: Store, *, hashes=("xxh3_64",)):
        builder = ShardBuilder(Schema.from_columns({"b": "bytes"}), ShardOptions(hashes=hashes))
        for number in range(3):
            builder.add({"b": bytes([number]) * (6 << 20)})
        (filled,) = builder.finish()
        shard = filled.seal()
        store.put(shard.info.stored.basename, bytes(shard.payloads[0]))
        return shard.info

    return write


@pytest.fixture
def make_cache(tmp_path):
    """Make a cache below `tmp_path/cache` with deadlines that a busy machine meets."""

    def make(store, infos, *, local="cache", retry=2, timeout=30.0, **options) -> ShardCache:
        chosen = CacheOptions(local=str(tmp_path / local), download_retry=retry, download_timeout=timeout, **options)
        return ShardCache(ShardSource(store, DIGEST, infos, chosen))

    return make


def ids(cache: ShardCache) -> list[int]:
    """Return the id column of every sample, read through the cache."""
    return [int(cache.shard(i)[k]["id"]) for i in range(len(cache)) for k in range(len(cache.shard(i)))]
