"""One byte of each kind of object of a version is changed: copies refuse it, `verify` reports it, no reader gets it."""

from contextlib import suppress

import pytest

from smalti.catalog import load_manifest, verify
from smalti.errors import ChecksumMismatch, IndexFileError, SmaltiError, StoreNotFound
from smalti.exchange import CopyOptions, copy_version
from smalti.inspection import head
from smalti.writer import MDSWriter
from tests.stores import MemoryStore
from tests.text_writers import JSONWriter

ROWS = [{"text": f"row {number:05} " * 20} for number in range(600)]
SETS = {
    "blocks": lambda out: MDSWriter(out=out, columns={"text": "str"}, size_limit=1 << 17),
    "one block": lambda out: MDSWriter(out=out, columns={"text": "str"}, size_limit=1 << 14),
    "compressed": lambda out: MDSWriter(out=out, columns={"text": "str"}, size_limit=1 << 15, compression="zstd"),
    "text": lambda out: JSONWriter(out=out, columns={"text": "str"}, size_limit=1 << 15),
}


@pytest.fixture(scope="module", params=SETS)
def objects(request):
    """Return the objects of a set by key."""
    store = MemoryStore()
    with SETS[request.param](store) as writer:
        for row in ROWS:
            writer.write(row)
    return {info.key: store.get(info.key) for info in store.list()}


def store_with(objects, key, place):
    """Return a store with these objects, of which one has another byte."""
    store = MemoryStore()
    for name, data in objects.items():
        store.put(name, data)
    changed = bytearray(objects[key])
    changed[place] ^= 1
    store.put(key, bytes(changed))
    return store


def kinds(objects):
    """Return a key of each kind of object, and a place in it: the middle, which lies in a sample or a hash."""
    chosen = {}
    for key in objects:
        if not key.startswith("_versions/0") and not key.endswith("index.json"):  # which have no checksum
            chosen.setdefault(key.partition(".")[2] + key.rpartition("/")[2][:6], key)
    return {key: len(objects[key]) // 2 for key in chosen.values()}


def test_a_changed_byte_is_not_copied_not_verified_and_not_shown(objects):
    assert len(kinds(objects)) >= 2, "shards and their table"
    for key, place in kinds(objects).items():
        store = store_with(objects, key, place)
        for read_back in (False, True):
            target = MemoryStore(url="memory-store://target")
            with pytest.raises((ChecksumMismatch, IndexFileError)):
                copy_version(store, target, options=CopyOptions(read_back=read_back))
            with pytest.raises(StoreNotFound):
                load_manifest(target)
        with suppress(SmaltiError):
            assert not verify(store).ok, key
        if key.endswith((".mds", ".xxh3")) or "_versions" in key:  # `head` of others checks the form alone, as it says
            with suppress(SmaltiError):
                assert list(head(store, len(ROWS)).rows) == ROWS, key


def test_a_changed_copy_is_found_when_it_is_read_back(objects):
    for key, place in kinds(objects).items():
        if "_versions" in key:
            continue  # made anew at the target
        store, target = store_with(objects, key, place), MemoryStore(url="memory-store://target")
        store.put(key, objects[key])
        copy_version(store, target)
        target.put(key, store_with(objects, key, place).get(key))
        assert not verify(target).ok, key
