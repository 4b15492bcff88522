"""Files that are changed while they are mapped: noticed before the next batch, never a wrong sample or a signal."""

import os
from types import SimpleNamespace

import pytest

from smalti.cache import ShardCache
from smalti.cache.files import quarantine
from smalti.cache.mapping import CheckBudget, OpenShards, ShardOpener, are_changed
from smalti.dataset import StreamingDataset
from smalti.errors import ChecksumMismatch
from smalti.format import Schema, ShardBuilder, ShardOptions, open_shard
from smalti.storage import LocalStore
from smalti.writer import MDSWriter
from tests.cache.conftest import Clock
from tests.stores import MemoryStore

PAGES = 40_000
"""Bytes of a sample: some pages, so that a truncated file does not end on its first one."""


def put_shard(store, first=0, *, hashes=("xxh3_64",)):
    """Put a shard of the samples `first` and `first` + 1, under the same key each time."""
    builder = ShardBuilder(Schema.from_columns({"id": "int64", "b": "bytes"}), ShardOptions(hashes=hashes))
    for number in (first, first + 1):
        builder.add({"id": number, "b": bytes([number]) * PAGES})
    (filled,) = builder.finish()
    shard = filled.seal()
    store.put(shard.info.stored.basename, bytes(shard.payloads[0]))
    return shard.info


def rewrite(path, data):
    """Rewrite a file in place, with another modification time."""
    before = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(before + 10**9, before + 10**9))


@pytest.fixture
def other(tmp_path):
    """Bytes of another shard of the same size."""
    store = LocalStore(tmp_path / "other")
    info = put_shard(store, 7)
    return store.get(info.stored.basename)


@pytest.fixture
def plain(tmp_path, make_cache):
    """Make a cache that has opened a shard in place; return the cache and the file."""

    def make(**options) -> tuple[ShardCache, os.PathLike]:
        store = LocalStore(tmp_path / "set")
        info = put_shard(store, **options)
        cache = make_cache(store, [info])
        assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES
        return cache, tmp_path / "set" / info.raw.basename

    return make


@pytest.fixture
def copied(tmp_path, make_cache):
    """Make a cache that has opened a copy; return the cache, the file and the store."""

    def make(**options):
        store = MemoryStore()
        info = put_shard(store, **options)
        cache = make_cache(store, [info])
        assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES
        (path,) = (tmp_path / "cache").rglob("shard.00000.mds")
        return cache, path, store

    return make


@pytest.mark.parametrize("hashes", [("xxh3_64",), ()], ids=["hashed", "without hashes"])
def test_a_plain_set_that_is_rewritten_in_place_is_an_error_that_says_what_to_do(plain, other, hashes):
    cache, path = plain(hashes=hashes)
    rewrite(path, other)
    for _ in range(2):
        with pytest.raises(ChecksumMismatch, match=r"shard\.00000.* changed after .*publish a new version"):
            cache.shards([0])


@pytest.mark.parametrize("change", ["rewritten", "cut short and grown"])
def test_a_plain_shard_whose_time_of_modification_was_put_back_is_an_error_all_the_same(plain, other, change):
    cache, path = plain()
    was = path.stat()
    if change == "rewritten":
        path.write_bytes(other)
    else:
        os.truncate(path, 4096)
        os.truncate(path, was.st_size)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    with pytest.raises(ChecksumMismatch, match="changed after"):
        cache.shards([0])


@pytest.mark.parametrize("hashes", [("xxh3_64",), ()], ids=["hashed", "without hashes"])
def test_a_copy_whose_time_of_modification_was_put_back_is_fetched_again(copied, other, hashes):
    cache, path, store = copied(hashes=hashes)
    was = path.stat()
    path.write_bytes(other)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES
    assert [call.op for call in store.calls].count("fetch") == 2


@pytest.mark.parametrize("hashes", [("xxh3_64",), ()], ids=["hashed", "without hashes"])
def test_a_plain_shard_that_got_another_mode_or_another_link_is_read_on(plain, hashes):
    cache, path = plain(hashes=hashes)
    path.chmod(0o640)
    assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES
    path.with_name("backup").hardlink_to(path)
    assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES


def test_a_plain_shard_that_is_replaced_by_another_file_is_an_error(plain, other):
    cache, path = plain()
    path.with_name("new").write_bytes(other)
    path.with_name("new").replace(path)
    with pytest.raises(ChecksumMismatch, match="changed after"):
        cache.shards([0])


def test_a_plain_shard_with_a_new_modification_time_and_the_same_bytes_is_still_read(plain):
    cache, path = plain()
    os.utime(path, ns=(1, 1))
    assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES


@pytest.mark.parametrize("read", ["batch", "sample"])
def test_a_truncated_plain_shard_is_an_error_and_no_signal(plain, read):
    cache, path = plain()
    os.truncate(path, 4096)
    with pytest.raises(ChecksumMismatch, match=r"expected \d+ bytes, found 4096"):
        _ = cache.shards([0])[0] if read == "batch" else cache.shard(0)[1]


@pytest.mark.parametrize("hashes", [("xxh3_64",), ()], ids=["hashed", "without hashes"])
@pytest.mark.parametrize("change", ["rewritten", "cut short"])
def test_a_copy_that_was_changed_is_fetched_again(copied, other, hashes, change):
    cache, path, store = copied(hashes=hashes)
    if change == "rewritten":
        rewrite(path, other)
    else:
        os.truncate(path, 4096)
    assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES
    assert [call.op for call in store.calls].count("fetch") == 2


def test_a_copy_that_another_process_removed_stays_readable(copied):
    cache, path, store = copied()
    path.unlink()
    assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES
    assert [call.op for call in store.calls].count("fetch") == 1


@pytest.mark.parametrize("change", ["rewritten", "cut short"])
def test_a_changed_copy_that_another_process_quarantined_is_fetched_again(copied, other, change):
    """That process noticed the change first, and may not have fetched the copy again yet."""
    cache, path, store = copied()
    if change == "rewritten":
        rewrite(path, other)
    else:
        os.truncate(path, 4096)
    quarantine(path)
    assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES
    assert [call.op for call in store.calls].count("fetch") == 2


def test_a_copy_without_hashes_that_another_process_replaced_is_not_fetched_again(copied):
    """Two processes with a limit would otherwise fetch it alternately without end."""
    cache, path, store = copied(hashes=())
    path.with_name("new").write_bytes(path.read_bytes())
    path.with_name("new").replace(path)
    assert cache.shards([0])[0][1]["b"] == b"\1" * PAGES
    assert [call.op for call in store.calls].count("fetch") == 1


def test_a_file_that_changes_while_it_is_verified_is_not_used(tmp_path, make_cache):
    class Touched(type(tmp_path)):
        """A path whose file changes when it is opened for verification."""

        def __fspath__(self):
            path = str(self)
            os.utime(path, ns=(os.stat(path).st_mtime_ns + 1,) * 2)
            return path

    class Changing(LocalStore):
        def local_path(self, key):
            return Touched(super().local_path(key))

    info = put_shard(LocalStore(tmp_path / "set"))
    with pytest.raises(ChecksumMismatch, match="changed after"):
        make_cache(Changing(tmp_path / "set"), [info]).shard(0)


@pytest.mark.parametrize("change", ["cut short", "rewritten, with its time put back"])
def test_a_copy_that_changes_while_it_is_mapped_is_not_used(tmp_path, other, change, monkeypatch):
    """States taken after mapping would be those after the change, so that the change would never be noticed."""
    store = LocalStore(tmp_path / "set")
    info = put_shard(store)
    path = tmp_path / "set" / info.raw.basename
    known = OpenShards(1)

    def open_and_change(paths, info, options):
        shard = open_shard(paths, info)
        was = path.stat()
        if change == "cut short":
            os.truncate(path, 4096)
        else:
            path.write_bytes(other)
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        return shard

    monkeypatch.setattr("smalti.cache.mapping.open_shard", open_and_change)
    source = SimpleNamespace(is_own_mirror=False, open_options=lambda info: None)
    shard = SimpleNamespace(shard_id=0, info=info, name="shard 0", source=source)
    opener = ShardOpener(shard, known, is_copied=True)
    assert not opener.is_verified((path,))
    if change == "cut short":
        with pytest.raises(ChecksumMismatch, match="changed after"):
            opener.open((path,))
    else:
        opener.open((path,))
        assert are_changed(known.states[0])
        assert not opener.is_verified((path,))


def test_an_epoch_fails_if_its_plain_set_is_rewritten_halfway(tmp_path):
    with MDSWriter(out=tmp_path / "set", columns={"id": "int"}) as writer:
        for number in range(100):
            writer.write({"id": number})
    dataset = StreamingDataset(remote=tmp_path / "set", batch_size=10)
    batches = dataset.batches()
    assert next(batches)["id"].tolist() == list(range(10))
    (path,) = (tmp_path / "set").rglob("*.mds")
    data = path.read_bytes()
    rewrite(path, data[:-800] + bytes(800))
    with pytest.raises(ChecksumMismatch):
        list(batches)


def test_file_checks_are_limited_to_a_percent_of_the_time():
    clock = Clock()
    budget = CheckBudget(clock)
    allowed = 0
    for _ in range(100_000):  # ten seconds of nothing but reading
        clock.now += 0.0001
        allowed += 3 * budget.allows(3)
    assert 4_000 + 19_000 < allowed < 4_000 + 21_000, "two seconds' worth at once, then 2,000 each second"
    for _ in range(100):  # a training step with 100 shards each
        clock.now += 0.1
        assert budget.allows(100)


def test_single_samples_are_checked_again_once_the_budget_allows_it():
    clock = Clock()
    budget = CheckBudget(clock)
    assert all(budget.allows_one() for _ in range(4_000))
    tight = sum(budget.allows_one() for _ in range(1_000))
    assert tight <= 1
    clock.now += 10.0
    answers = [budget.allows_one() for _ in range(200)]
    assert all(answers[64:]), "the clock is read at every 64th call"
