"""Truncated and flipped files behind declared hashes: no reader ever returns them as a value (E1, E2, E13).

Every truncation of every file of a small set, raw and in each compression, of MDS and of text shards; and a thousand
flipped bits for each reader.
"""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource
from smalti.cache.sources import detect_cache_folder
from smalti.catalog import load_manifest
from smalti.dataset import StreamingDataset
from smalti.dataset.local import LocalDataset
from smalti.errors import FormatError
from smalti.format import Schema, ShardBuilder, ShardOptions, emit_index
from smalti.format.text import TextLayout, text_schema
from tests.seeds import seed_of
from tests.stores import MemoryStore
from tests.text_writers import TextBuilder

SEED = seed_of(20241107)
FLIPS = 1000
SAMPLES = [{"id": number, "name": "né" * number} for number in range(3)]
RAW = (".mds", ".json", ".meta")
COMPRESSIONS = (None, "br:1", "bz2:1", "gz:1", "snappy", "zstd:1")


@dataclass(frozen=True)
class SmallSet:
    """The objects of a set of one shard, by name."""

    objects: dict[str, bytes]
    damaged: str
    """Name of the file to damage."""


def small_sets():
    """Return each kind of set with each of its files as the one to damage."""
    columns = {"id": "int", "name": "str"}
    for compression in COMPRESSIONS:
        options = ShardOptions(compression=compression, hashes=("xxh3_64",))
        yield from _sets(f"mds {compression}", ShardBuilder(Schema.from_columns(columns), options))
    for compression in (None, "zstd:1"):
        options = ShardOptions(compression=compression, hashes=("xxh3_64",))
        yield from _sets(f"json {compression}", TextBuilder(TextLayout("json", text_schema(columns)), options))


def _sets(name, builder):
    for sample in SAMPLES:
        builder.add(sample)
    (filled,) = builder.finish()
    built = filled.seal()
    files = {info.basename: bytes(data) for info, data in zip(built.info.stored_files, built.payloads, strict=True)}
    objects = {"index.json": emit_index([built.info]), **files}
    for file in files:
        yield pytest.param(SmallSet(objects, file), id=f"{name} {file}")


class InPlace:
    """A folder that is read in place."""

    share_of_packed = 1.0

    def __init__(self, small, folder):
        self._folder, self._name = folder / "set", small.damaged
        self._folder.mkdir()
        for name, data in small.objects.items():
            (self._folder / name).write_bytes(data)

    def damage(self, data):
        (self._folder / self._name).unlink()
        (self._folder / self._name).write_bytes(data)

    def read(self):
        cache = Path(f"{self._folder}-cache")
        shutil.rmtree(cache, ignore_errors=True)  # an intact unpacked copy from before the damage would be used
        dataset = StreamingDataset(remote=str(self._folder), cache=CacheOptions(local=str(cache), download_retry=1))
        return [dataset[i] for i in range(dataset.size)]


class Local(InPlace):
    """The same as a map-style set."""

    share_of_packed = 0.03  # files that do not unpack are retried once, after a pause

    def read(self):
        shutil.rmtree(detect_cache_folder(), ignore_errors=True)
        dataset = LocalDataset(str(self._folder))
        return [dataset[i] for i in range(len(dataset))]


class Remote:
    """A store whose objects are fetched into a cache, a new one each time."""

    share_of_packed = 1.0

    def __init__(self, small, folder):
        self._store, self._folder, self._name, self._runs = MemoryStore(), folder, small.damaged, 0
        self._store.objects.update(small.objects)

    def damage(self, data):
        self._store.objects[self._name] = data

    def read(self):
        self._runs += 1
        manifest = load_manifest(self._store)
        options = CacheOptions(local=str(self._folder / str(self._runs)), download_retry=1)
        cache = ShardCache(ShardSource(self._store, manifest.digest, manifest.shards, options))
        try:
            return [cache.shard(0)[i] for i in range(manifest.rows)]
        finally:
            cache.close()


READERS = [InPlace, Local, Remote]


def check(reader, small, folder, *, share):
    """Read the set with one file damaged, in `share` of all ways; only the undamaged file may give values."""
    good, dice = small.objects[small.damaged], Random(SEED)
    share *= 1.0 if small.damaged.endswith(RAW) else reader.share_of_packed
    opened = reader(small, folder)
    assert opened.read() == SAMPLES
    lengths = sorted(dice.sample(range(len(good)), math.ceil(share * len(good))))
    flips = [dice.randrange(8 * len(good)) for _ in range(math.ceil(share * FLIPS / len(SETS)))]
    damaged = [good[:length] for length in lengths]
    damaged += [good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :] for bit in flips]
    damaged += [good + b"\0", good + good]
    for data in damaged:
        opened.damage(data)
        with pytest.raises(FormatError):
            opened.read()
    opened.damage(good)
    assert opened.read() == SAMPLES


SETS = list(small_sets())


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Set the user's cache folder to one of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users-cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in detect_cache_folder().parents


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("small", SETS)
def test_one_in_ten_truncations_and_flips_is_refused(small, reader, tmp_path):
    check(reader, small, tmp_path, share=0.1)


@pytest.mark.search
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("small", SETS)
def test_every_truncation_and_a_thousand_flips_are_refused(small, reader, tmp_path):
    check(reader, small, tmp_path, share=1)
