"""Shard sets opened for reading: samples and batches by id, verified before the first byte."""

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from smalti.cache import CacheOptions
from smalti.catalog import merge_index
from smalti.dataset import StreamingDataset
from smalti.errors import ChecksumMismatch, SchemaError
from smalti.storage import LocalStore
from smalti.stream import OpenStreams, Stream, StreamOptions
from smalti.writer import MDSWriter
from tests.shard_sets import sample, write_set
from tests.stores.logged import LoggedStore


def open_set(root, **options) -> OpenStreams:
    return OpenStreams([StreamOptions(str(root), **options)])


def shard_files(root) -> list[Path]:
    return sorted(Path(root).rglob("*.mds"))


@pytest.fixture
def root(tmp_path):
    return write_set(tmp_path / "set", 95)


def test_an_empty_split_is_none_as_for_mosaicml(root):
    options = Stream(remote=str(root), split="").options()
    assert options.split is None
    assert len(OpenStreams([options])) == 95
    assert len(StreamingDataset(remote=str(root), batch_size=1, split="")) == 95


def test_an_empty_local_means_the_users_cache_folder(root):
    assert Stream(remote=str(root), cache=CacheOptions(local="")).options().cache.local is None


def test_a_store_may_be_given_instead_of_its_address(root, tmp_path):
    store = LoggedStore(LocalStore(root), tmp_path / "log")
    options = Stream(remote=store, cache=CacheOptions(local=str(tmp_path / "local"))).options()
    assert options.root == f"logged+{root}"
    streams = pickle.loads(pickle.dumps(OpenStreams([options])))
    assert streams.sample(94)["id"] == 94
    assert len(store.lines("fetch")) == 1


@pytest.mark.parametrize("given", [{}, {"remote": ""}])
def test_a_stream_without_remote_is_refused(given):
    for kind in (Stream, StreamingDataset):
        with pytest.raises(ValueError, match="`remote` is needed"):
            kind(**given)


def test_a_batch_holds_the_samples_asked_for_in_that_order(root):
    stream = open_set(root)
    ids = np.array([94, 0, 50, 50, 13, 1])
    batch = stream.batch(ids)
    assert len(stream.shards) > 5
    assert batch["id"].tolist() == ids.tolist()
    assert batch["text"] == [sample(i)["text"] for i in ids.tolist()]
    assert (batch["vector"] == np.stack([sample(i)["vector"] for i in ids.tolist()])).all()
    assert [stream.sample(i)["id"] for i in ids.tolist()] == ids.tolist()


def test_every_sample_id_is_found_in_its_shard(root):
    stream = open_set(root)
    assert len(stream) == 95
    assert [stream.sample(i)["id"] for i in range(95)] == list(range(95))
    assert stream.batch(np.arange(95))["id"].tolist() == list(range(95))


def test_out_is_filled_over_many_shards(root):
    out = {"vector": np.zeros((4, 3), np.float32)}
    batch = open_set(root).batch(np.array([80, 2, 33, 2]), out=out)
    assert batch["vector"] is out["vector"]
    assert out["vector"][:, 0].tolist() == [80, 2, 33, 2]


def test_an_empty_batch_has_every_column(root):
    batch = open_set(root).batch(np.array([], np.int64))
    assert batch["id"].shape == (0,)
    assert batch["vector"].shape == (0, 3)
    assert batch["text"] == []


@pytest.mark.parametrize("ids", [[-1], [94, -5], [-(1 << 40), 3], [95]])
def test_ids_out_of_range_are_refused_before_anything_is_read(root, ids):
    stream = open_set(root)
    for path in shard_files(root):
        path.unlink()
    for read in (stream.batch, stream.prefetch):
        with pytest.raises(IndexError, match=f"samples {min(ids)} to {max(ids)} of .*, which has 95"):
            read(np.array(ids))


def test_a_pickled_column_is_refused_when_the_set_is_opened(root):
    index = json.loads((root / "index.json").read_text())
    plain = root.parent / "plain"
    plain.mkdir()
    for shard in index["shards"]:
        shard["column_encodings"] = ["int", "pkl", "ndarray:float32:3"]
    (plain / "index.json").write_text(json.dumps({"shards": index["shards"], "version": 2}))
    with pytest.raises(SchemaError, match="pkl"):
        open_set(plain)


def test_each_shard_is_decoded_by_its_own_encodings(tmp_path):
    """Other writers may change an encoding from shard to shard."""
    entries = []
    for place, (kind, value) in enumerate((("str", "a"), ("bytes", b"b"))):
        write_one(tmp_path / str(place), {"x": kind}, {"x": value})
        entry = json.loads((tmp_path / str(place) / "index.json").read_text())["shards"][0]
        entry["raw_data"]["basename"] = f"{place}/{entry['raw_data']['basename']}"
        entries.append(entry)
    (tmp_path / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    stream = open_set(tmp_path)
    assert [stream.sample(i)["x"] for i in range(2)] == ["a", b"b"]
    assert [stream.batch(np.array([i]))["x"] for i in range(2)] == [["a"], [b"b"]]
    with pytest.raises(SchemaError, match=r"shard\.00000\.mds"):
        stream.batch(np.array([0, 1]))


def write_one(root, columns, row):
    with MDSWriter(out=str(root), columns=columns) as writer:
        writer.write(row)


# ---------------------------------------------------------------- verification

READS = {
    "sample": lambda stream: stream.sample(3),
    "batch": lambda stream: stream.batch(np.array([3])),
}


CHANGES = {"cut": lambda data: data[:-1], "longer": lambda data: data + b"\0", "empty": lambda data: b""}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_any_flipped_bit_is_detected_before_a_value_is_returned(tmp_path, read):
    """One flipped bit anywhere in a small shard, its header and padding too."""
    root = write_set(tmp_path / "set", 5)
    (file,) = shard_files(root)
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        file.write_bytes(damaged)
        stream = open_set(root)
        for _ in range(2):  # and the next request notices again
            with pytest.raises(ChecksumMismatch, match="shard 0 "):
                read(stream)
    file.write_bytes(whole)
    read(open_set(root))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_shard_of_the_wrong_size_is_never_read(tmp_path, read, change):
    root = write_set(tmp_path / "set", 5, hashes=[])
    (file,) = shard_files(root)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ChecksumMismatch):
        read(open_set(root))


def test_a_batch_detects_a_shard_that_changed_since_it_was_opened(root):
    stream = open_set(root)
    file = shard_files(root)[4]
    data = bytearray(file.read_bytes())
    data[-1] ^= 4
    file.write_bytes(data)
    with pytest.raises(ChecksumMismatch, match=r"shard 4 \(.*shard.00004.mds\)"):
        stream.batch(np.arange(95))
    first = int(stream.shard_sizes[:4].sum())
    assert stream.batch(np.arange(first))["id"].tolist() == list(range(first))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts what the process reads in /proc")
def test_a_second_epoch_reads_and_hashes_no_file_again(tmp_path):
    root = write_set(tmp_path / "set", 3000, size_limit=20_000)
    num_bytes = sum(file.stat().st_size for file in shard_files(root))
    stream, ids = open_set(root), np.random.default_rng(0).permutation(3000)

    def epoch() -> int:
        before = bytes_read()
        for begin in range(0, 3000, 100):
            stream.batch(ids[begin : begin + 100])
        return bytes_read() - before

    first, second = epoch(), epoch()
    assert first >= num_bytes  # hashed once
    assert second < num_bytes / 20  # what other threads of the test process may have read


def bytes_read() -> int:
    """Return the bytes that this process requested by read calls, from the page cache or not."""
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"])


# ---------------------------------------------------------------- threads


def test_many_threads_read_one_stream(root):
    stream, wrong = open_set(root), []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            ids = rng.integers(0, 95, 30)
            if stream.batch(ids)["id"].tolist() != ids.tolist():
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=500)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)


def test_batches_succeed_when_few_files_may_be_open(root):
    """Shards are closed between batches; one batch may hold more of them than the cache keeps."""
    stream = open_set(root)
    stream.cache._opened.max_open = 2
    for seed in range(3):
        ids = np.random.default_rng(seed).permutation(95)
        assert stream.batch(ids)["id"].tolist() == ids.tolist()
        assert stream.sample(int(ids[0]))["id"] == ids[0]
    assert len(stream.cache._opened) <= 2


FEW_FILES = """
import resource, sys
import numpy as np
from smalti.stream import OpenStreams, StreamOptions

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
stream = OpenStreams([StreamOptions(sys.argv[1])])
ids = np.random.default_rng(7).permutation(len(stream))
out = {"vector": np.zeros((len(ids), 3), np.float32)}
batch = stream.batch(ids, out=out)
assert len(stream.shards) > 64 and batch["id"].tolist() == ids.tolist() and batch["vector"] is out["vector"]
assert out["vector"][:, 0].tolist() == ids.tolist()
assert batch["text"] == [stream.sample(int(i))["text"] for i in ids]
print("read")
"""


@pytest.mark.slow
def test_a_batch_may_need_more_shards_than_descriptors(tmp_path):
    command = [sys.executable, "-c", FEW_FILES, str(write_set(tmp_path / "set", 700))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout == "read\n", done.stderr[-2000:]


def test_a_batch_read_in_parts_refuses_shards_with_different_columns(tmp_path):
    for number, kind in enumerate(("int", "int8")):
        write_one(tmp_path / str(number), {"a": kind}, {"a": 1})
    merge_index(str(tmp_path))
    stream = open_set(tmp_path)
    stream.cache._max_open = 1
    with pytest.raises(SchemaError, match="different columns"):
        stream.batch(np.array([0, 1]))


def test_batch_columns_are_in_stored_order(tmp_path):
    with MDSWriter(out=str(tmp_path / "s"), columns={"z": "int", "a": "int"}) as writer:
        writer.write({"z": 1, "a": 2})
    assert list(open_set(tmp_path / "s").batch(np.array([0]))) == ["a", "z"]
