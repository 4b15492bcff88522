"""Reading of verified blocks: what is fetched, and what happens to damaged, missing and slow parts."""

import errno
import gc
import hashlib
import time
import warnings
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from smalti import MDSWriter, Stream, StreamingDataset
from smalti.cache import CacheOptions, Counters, ShardCache, ShardSource
from smalti.cache import blocks as reading
from smalti.cache.blocks import BlockBudget
from smalti.cache.sources import ShardSources
from smalti.catalog import load_manifest
from smalti.dataset import lookahead
from smalti.errors import ChecksumMismatch, FormatError, ShardNotFound, StoreError, StoreTimeout
from smalti.format import BlockHashes, BlockList, place_lists
from smalti.format.hashing import BLOCK_BYTES, hash_blocks, num_blocks
from tests.reading_options import grouped
from tests.stores import LoggedStore, MemoryStore

ROWS = 120
"""Samples of 20 to 32 KB, so that a shard has sixteen blocks."""


def sample(number):
    size = 20_000 + 100 * number
    return {"id": number, "data": np.random.default_rng(number).bytes(size)}


def write(store, rows=ROWS, **options):
    with MDSWriter(columns={"id": "int", "data": "bytes"}, out=store, size_limit=1 << 20, **options) as writer:
        for number in range(rows):
            writer.write(sample(number))
    return store


@pytest.fixture
def store():
    return write(MemoryStore())


@pytest.fixture
def opened(tmp_path):
    """Return a dataset over a store, whose index was read already."""

    def make(store, **options):
        dataset = StreamingDataset(remote=store, batch_size=4, **grouped(local=str(tmp_path / "cache"), **options))
        assert dataset.manifest.rows == ROWS
        store.calls_before = len(store.calls)
        return dataset

    return make


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def shard_calls(store):
    """Return the reading calls since the dataset was opened, in order."""
    return [call for call in store.calls[store.calls_before :] if call.op in {"get_range", "fetch", "get"}]


def is_right(found):
    return found == sample(found["id"])


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


def test_a_block_list_names_the_first_damaged_block():
    data = np.random.default_rng(0).bytes(3 * BLOCK_BYTES + 100)
    lists = [b"\0" * 16, hash_blocks(data)]
    assert len(lists[1]) == 8 * num_blocks(len(data), BLOCK_BYTES) == 32
    _, place = place_lists(lists, "blocks")
    assert place.span(len(data)) == (16, 48)
    hashes = BlockHashes(lists[1], place, len(data), what="shard")
    hashes.verify(data, 0)
    hashes.verify(data[2 * BLOCK_BYTES :], 2)
    damaged = bytearray(data)
    damaged[2 * BLOCK_BYTES + 5] ^= 1
    with pytest.raises(ChecksumMismatch, match="block 2"):
        hashes.verify(damaged, 0)
    for cut in (data[:-1], data + b"x", b""):
        with pytest.raises(ChecksumMismatch):
            hashes.verify(cut, 0)
    with pytest.raises(ChecksumMismatch):
        hashes.verify(data[BLOCK_BYTES:], 0)


@pytest.mark.parametrize("wrong", [b"", b"\0" * 8, b"\0" * 16, b"\0" * 24])
def test_a_list_that_is_not_the_published_one_is_refused(wrong):
    place = BlockList("blocks", 0, BLOCK_BYTES, 1)
    with pytest.raises(ChecksumMismatch, match="list of its block hashes"):
        BlockHashes(wrong, place, 2 * BLOCK_BYTES, what="shard")


def test_a_sample_by_id_takes_two_round_trips_and_then_one_and_no_shard(store, opened):
    dataset = opened(store)
    assert is_right(dataset[17])
    first = shard_calls(store)
    assert Counter(call.op for call in first) == {"get_range": 3}  # list and header at once, then the sample
    assert is_right(dataset[22])
    assert [call.op for call in shard_calls(store)[3:]] == ["get_range"]
    assert is_right(dataset[17])
    assert len(shard_calls(store)) == 4


def test_a_shard_that_many_samples_are_read_of_is_fetched_whole(store, opened):
    dataset = opened(store)
    for _ in range(2):
        assert all(is_right(dataset[number]) for number in range(0, 30, 3))
    calls = shard_calls(store)
    assert [call.op for call in calls].count("fetch") == 1
    assert calls[-1].op == "fetch"


def test_the_first_batch_of_a_pass_comes_before_any_whole_shard(store, opened):
    dataset = opened(store, shuffle=True)
    batches = dataset.batches()
    first = next(batches)
    begin = [call.op for call in shard_calls(store)]
    assert begin[: begin.index("fetch") if "fetch" in begin else None].count("get_range") >= 3
    found = [*first["id"], *(number for batch in batches for number in batch["id"])]
    assert sorted(found) == list(range(ROWS))
    assert 0 < dataset.stats().bytes_in_blocks < dataset.stats().bytes_fetched


def test_a_resumed_pass_begins_with_blocks_too(store, opened):
    whole = [int(number) for batch in opened(store, shuffle=True).batches() for number in batch["id"]]
    dataset = opened(write(MemoryStore("memory-store://other")), shuffle=True)
    dataset.load_state_dict(dataset.state_dict(num_samples=96, from_beginning=True))
    found = [int(number) for batch in dataset.batches() for number in batch["id"]]
    assert found == whole[96:]
    assert dataset.stats().bytes_in_blocks > 0


@pytest.mark.parametrize("shuffle", [False, True])
def test_without_a_cache_an_epoch_is_the_same_and_nothing_is_written(store, opened, tmp_path, shuffle):
    dataset = opened(store, shuffle=shuffle, mode="none")
    batches = list(dataset.batches())
    found = [int(number) for batch in batches for number in batch["id"]]
    assert sorted(found) == list(range(ROWS))
    assert all(
        data == sample(int(n))["data"] for batch in batches for n, data in zip(batch["id"], batch["data"], strict=True)
    )
    assert {call.op for call in shard_calls(store)} == {"get_range"}
    assert not files_below(tmp_path / "cache")
    assert dataset.stats().fetches == 0


def test_without_a_cache_the_blocks_of_later_batches_come_ahead_and_once(store, opened):
    """The first batch is read by itself, the second one together with all others: 3 MB."""
    dataset = opened(store, shuffle=True, mode="none")
    batches = dataset.batches()
    ids = [int(number) for _ in range(2) for number in next(batches)["id"]]
    ahead = len(shard_calls(store))
    ids += [int(number) for batch in batches for number in batch["id"]]
    assert sorted(ids) == list(range(ROWS))
    assert len(shard_calls(store)) == ahead
    whole = sum(len(data) for key, data in store.objects.items() if key.endswith((".mds", ".xxh3")))
    assert dataset.stats().bytes_fetched == whole


@pytest.mark.parametrize("options", [{"predownload": 8}, {}])
def test_without_a_cache_a_bounded_number_of_batches_comes_ahead(store, opened, monkeypatch, options):
    """Two batches at once, by `predownload` or by their bytes; another two are on their way meanwhile."""
    if not options:
        monkeypatch.setattr(lookahead, "AHEAD_BYTES", 500_000)
    dataset = opened(store, mode="none", **options)
    batches = dataset.batches()
    ids = [int(number) for _ in range(3) for number in next(batches)["id"]]
    assert dataset.stats().bytes_fetched < 1_500_000
    assert ids + [int(number) for batch in batches for number in batch["id"]] == list(range(ROWS))


def test_without_a_cache_a_block_that_is_damaged_is_an_error_of_its_own_batch(store, opened):
    spoil(store, shard_keys(store)[-1], -1)
    batches = opened(store, mode="none").batches()
    found = []
    with pytest.raises(ChecksumMismatch, match="block"):
        found += (int(number) for batch in batches for number in batch["id"])
    assert found == list(range(ROWS - 4))


def test_without_a_cache_only_the_blocks_of_the_samples_are_read(store, opened):
    dataset = opened(store, mode="none")
    for number in (3, 61, 119):
        assert is_right(dataset[number])
    whole = sum(len(data) for key, data in store.objects.items() if key.endswith(".mds"))
    assert dataset.stats().bytes_fetched < whole / 2


@pytest.mark.parametrize("at", [[3, 61, -1, 3], np.array([3, 61]), slice(0, 120, 59), [[3], [61]]])
@pytest.mark.parametrize("cache", ["shards", "none"])
def test_a_list_of_samples_is_the_same_as_one_by_one(store, opened, at, cache):
    found = opened(store, mode=cache)[at]
    flat = [each for item in found for each in (item if isinstance(item, list) else [item])]
    assert [each["id"] for each in flat] == (
        np.arange(ROWS)[at] if isinstance(at, slice) else np.ravel(at) % ROWS
    ).tolist()
    assert all(map(is_right, flat))


def test_the_blocks_of_a_list_come_together(store, opened):
    dataset = opened(store, mode="none")
    dataset[[3, 10, 61, 70, 100]]
    keys = [call.key for call in shard_calls(store)]
    assert sum("blocks" in key for key in keys) == 1  # of three shards
    assert len(keys) == 1 + 3 + 5


def test_one_stream_of_a_mixture_may_be_read_without_a_cache(store, tmp_path):
    other = write(MemoryStore("memory-store://other"))
    streams = [
        Stream(remote=store, cache=CacheOptions(local=str(tmp_path / "a"))),
        Stream(remote=other, cache=CacheOptions(local=str(tmp_path / "b"), mode="none")),
    ]
    dataset = StreamingDataset(streams=streams, batch_size=4, shuffle=True)
    found = [int(number) for batch in dataset.batches() for number in batch["id"]]
    assert sorted(found) == sorted([*range(ROWS)] * 2)
    assert files_below(tmp_path / "a")
    assert not files_below(tmp_path / "b")


def test_loader_workers_read_without_a_cache(tmp_path):
    from smalti.storage import open_store
    from smalti.torch import StreamingDataLoader

    write(open_store(str(tmp_path / "set")))
    store = LoggedStore(open_store(str(tmp_path / "set")), tmp_path / "log")
    dataset = StreamingDatasetOfTorch(store, tmp_path)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2)
    assert sorted(int(number) for batch in loader for number in batch["id"]) == list(range(ROWS))
    assert not store.lines("fetch")
    assert not files_below(tmp_path / "cache")


def StreamingDatasetOfTorch(store, folder):  # noqa: N802 -- a class that is imported late
    from smalti.torch import StreamingDataset as TorchDataset

    return TorchDataset(remote=store, cache=CacheOptions(local=str(folder / "cache"), mode="none"), batch_size=4)


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"hashes": ["sha256"]}, {"hashes": []}])
@pytest.mark.parametrize("cache", ["shards", "none"])
def test_sets_without_block_lists_are_read_as_whole_shards(opened, options, cache):
    store = write(MemoryStore(), **options)
    assert not [key for key in store.objects if "blocks" in key]
    dataset = opened(store, mode=cache)
    assert is_right(dataset[17])
    assert [call.op for call in shard_calls(store)] == ["fetch"]


def test_the_cache_option_has_two_values(store):
    with pytest.raises(ValueError, match="must be one of shards, none"):
        StreamingDataset(remote=store, cache=CacheOptions(mode="some"))


def blocks_of(store, key):
    return range(num_blocks(len(store.objects[key]), BLOCK_BYTES))


def spoil(store, key, place, bit=0):
    data = bytearray(store.objects[key])
    data[place] ^= 1 << bit
    store.objects[key] = bytes(data)


def shard_keys(store):
    return sorted(key for key in store.objects if key.endswith(".mds"))


def block_file(store):
    (key,) = [key for key in store.objects if "/blocks." in key]
    return key


def test_a_flipped_bit_in_any_block_is_an_error_and_no_sample_is_wrong(tmp_path):
    intact = write(MemoryStore())
    for key in (shard_keys(intact)[1], shard_keys(intact)[-1]):
        for block in blocks_of(intact, key):
            store = MemoryStore(f"memory-store://{block}")
            store.objects.update(intact.objects)
            spoil(store, key, min(block * BLOCK_BYTES + 77, len(store.objects[key]) - 1), block % 8)
            dataset = StreamingDataset(
                remote=store, cache=CacheOptions(local=str(tmp_path), download_retry=1, mode="none")
            )
            outcomes = Counter()
            for number in (*range(44, 87), 0, ROWS - 1):
                try:
                    assert is_right(dataset[number])
                    outcomes["right"] += 1
                except ChecksumMismatch as error:  # noqa: PERF203
                    assert key in str(error)  # noqa: PT017 -- some samples are right, some raise
                    outcomes["refused"] += 1
            assert outcomes["refused"] > 0
            assert outcomes["right"] > 0


def test_a_damaged_block_of_a_cached_set_is_an_error_of_the_whole_shard(store, opened):
    key = shard_keys(store)[1]
    spoil(store, key, len(store.objects[key]) - 1)
    last = load_manifest(store).shards[0].samples + load_manifest(store).shards[1].samples - 1
    dataset = opened(store, download_retry=1)
    with pytest.raises(ChecksumMismatch, match="1 attempts"):
        dataset[last]
    assert is_right(dataset[0])


def test_a_bit_that_flips_on_the_way_is_read_again(store, opened):
    store.plant("get_range", key="*.mds", times=2, flip=3)
    dataset = opened(store, mode="none")
    assert is_right(dataset[17])
    assert dataset.stats().retries >= 1
    assert dataset.stats().failures["damaged"] >= 1


@pytest.mark.parametrize("cache", ["shards", "none"])
@pytest.mark.parametrize("fault", ["missing", "truncated", "flipped"])
def test_a_block_file_that_is_missing_truncated_or_flipped_costs_whole_shards_and_a_warning(
    store, opened, cache, fault
):
    key = block_file(store)
    if fault == "missing":
        del store.objects[key]
    elif fault == "truncated":
        store.objects[key] = store.objects[key][:5]
    else:
        for place in range(0, len(store.objects[key]), 8):
            spoil(store, key, place)
    dataset = opened(store, mode=cache, download_retry=1)
    with pytest.warns(UserWarning, match="fetched whole"):
        assert is_right(dataset[17])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_right(dataset[117])  # one warning for each file
    assert [call.op for call in shard_calls(store)].count("fetch") == 2


def test_a_damaged_list_costs_only_its_own_shard(store, opened):
    first, second = load_manifest(store).shards[:2]
    spoil(store, block_file(store), second.blocks.offset)
    dataset = opened(store, mode="none", download_retry=1)
    with pytest.warns(UserWarning, match="fetched whole"):
        assert all(map(is_right, dataset[[3, first.samples + 3]]))  # both lists come in one range
    assert [call.key for call in shard_calls(store) if call.op == "fetch"] == [second.raw.basename]


def test_a_store_that_fails_once_for_a_list_does_not_end_reading_in_blocks(store, opened):
    key = block_file(store)
    store.plant("get_range", key=key, times=1)
    dataset = opened(store, download_retry=1)
    assert is_right(dataset[17])  # its shard is fetched whole
    requested = [call.op for call in store.calls if call.key == key]
    assert is_right(dataset[117])
    assert [call.op for call in store.calls if call.key == key] == [*requested, "get_range"]


def test_blocks_of_a_weaker_hash_than_the_shard_has_are_not_used(store, tmp_path):
    manifest = load_manifest(store)
    shard = manifest.shards[0]
    hashes = {"sha256": hashlib.sha256(store.objects[shard.raw.basename]).hexdigest()}
    stronger = replace(shard, raw=replace(shard.raw, hashes=hashes), hash_names=("sha256",))
    cache = ShardCache(ShardSource(store, manifest.digest, (stronger,), CacheOptions(local=str(tmp_path), mode="none")))
    assert is_right(cache.shard(0, 3)[3])
    assert "get_range" not in {call.op for call in store.calls if call.key == shard.raw.basename}
    cache.close()


def test_without_a_cache_no_folder_is_needed(store, opened, tmp_path):
    (tmp_path / "cache").write_text("a file, where no folder can be made")
    dataset = opened(store, mode="none", shuffle=True)
    assert is_right(dataset[17])
    assert all(map(is_right, dataset[[3, 61]]))
    assert sorted(int(number) for batch in dataset.batches() for number in batch["id"]) == list(range(ROWS))


@pytest.mark.parametrize("fault", ["a damaged header", "no address space", "a header that contradicts the index"])
def test_the_error_of_one_shard_keeps_no_blocks_of_others_in_memory(
    store, tmp_path, monkeypatch, without_collector, fault
):
    manifest = load_manifest(store)
    wrong = manifest.shards[1].raw.basename
    memory = []

    class WatchedFile(reading.PartialFile):
        def __init__(self, hashes, name):
            if fault == "no address space" and name == wrong:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            super().__init__(hashes, name)
            if name != wrong:
                memory.append(weakref.ref(self))

    monkeypatch.setattr(reading, "PartialFile", WatchedFile)
    shards = list(manifest.shards)
    if fault == "a damaged header":
        spoil(store, wrong, 0)
    elif fault == "a header that contradicts the index":
        shards[1] = replace(shards[1], schema=replace(shards[1].schema, names=("id", "other")))
    options = CacheOptions(local=str(tmp_path), download_retry=1)
    sources = ShardSources([ShardSource(store, manifest.digest, shards, options, is_own=True)], None)
    found, errors = reading.BlockReader(sources, Counters()).read({shard: np.array([1]) for shard in range(3)})
    assert (sorted(found), list(errors), len(memory)) == ([0, 2], [1], 2)
    del found, errors
    end = time.monotonic() + 10  # the threads that requested them end
    while any(file() is not None for file in memory) and time.monotonic() < end:
        time.sleep(0.01)
    assert [file() for file in memory if file() is not None] == []


@pytest.mark.parametrize("cache", ["shards", "none"])
def test_too_little_address_space_is_an_error_or_costs_the_whole_shard(store, opened, monkeypatch, cache):
    dataset = opened(store, mode=cache)
    assert is_right(dataset[1])

    def no_map(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(reading, "PartialFile", no_map)
        if cache == "none":
            with pytest.raises(StoreError, match="Cannot allocate memory"):
                dataset[61]
        else:
            assert is_right(dataset[61])
    assert is_right(dataset[61])


def test_the_number_of_shards_with_blocks_in_memory_is_bounded(store, opened, monkeypatch):
    monkeypatch.setattr(reading, "MAX_KEPT_SHARDS", 1)
    dataset = opened(store, mode="none")
    for number in (1, 50, 1):
        assert is_right(dataset[number])
    assert sum("blocks" in call.key for call in shard_calls(store)) == 3


def test_small_batches_are_read_in_blocks_until_four_mebibytes_are_spent():
    budget = BlockBudget()
    assert [budget.allows(1 << 20, 1 << 30) for _ in range(6)] == [True, True, True, True, False, False]
    assert BlockBudget().allows(1 << 20, 1 << 30), "in another pass"


def test_the_first_batch_of_each_thread_is_read_in_blocks_whichever_thread_begins():
    budget = BlockBudget()
    with ThreadPoolExecutor(1) as earlier, ThreadPoolExecutor(1) as later:
        answers = [
            thread.submit(budget.allows, 8 << 20, 1 << 30).result(timeout=120)
            for thread in (earlier, earlier, later, later)
        ]
    assert answers == [True, False, True, False]


def test_a_shard_that_is_gone_is_named(store, opened):
    del store.objects[shard_keys(store)[0]]
    with pytest.raises(ShardNotFound, match="shard 0"):
        opened(store, mode="none")[17]


def test_blocks_that_never_arrive_are_an_error_at_the_deadline(store, opened):
    dataset = opened(store, mode="none", download_timeout=5.0, download_retry=1)
    assert is_right(dataset[17])
    store.plant("get_range", key="*.mds", delay=30.0)
    with pytest.raises(StoreTimeout, match="did not arrive"):
        dataset[22]


@pytest.mark.parametrize("key", ["*.mds", "*.xxh3"])
@pytest.mark.parametrize("cache", ["none", "shards"])
def test_a_request_for_blocks_that_is_not_answered_is_made_again(store, opened, key, cache):
    dataset = opened(store, mode=cache, download_timeout=60.0, download_retry=40)
    store.plant("get_range", key=key, delay=30.0, times=1)
    assert is_right(dataset[17])
    assert dataset.stats().retries >= 1


def test_memory_for_blocks_is_bounded_and_dropped_shards_are_read_again(store, opened, monkeypatch):
    monkeypatch.setattr(reading, "MAX_KEPT_BYTES", 0)
    dataset = opened(store, mode="none")
    for _ in range(2):
        for number in (1, 50, 80, 117):
            assert is_right(dataset[number])
    # Each shard is new again; the last one is a single block, and has no list.
    assert sum("blocks" in call.key for call in shard_calls(store)) == 6


def test_a_part_of_a_shard_refuses_samples_that_were_not_asked_for(store, tmp_path):
    manifest = load_manifest(store)
    options = CacheOptions(local=str(tmp_path), mode="none")
    cache = ShardCache(ShardSource(store, manifest.digest, manifest.shards, options))
    part = cache.shard(0, 3)
    assert is_right(part[3])
    for use in (lambda: part[11], lambda: part.batch(np.array([3, 11])), part.stored_samples):
        with pytest.raises(FormatError, match="not fetched"):
            use()
    assert cache.shard(0).stored_samples().lengths.size == manifest.shards[0].samples
    assert is_right(part[11])  # of the same memory
    cache.close()
