"""Streams, readers of single shards and local datasets: equal to MosaicML's own, for its sets and for Smalti's."""

import inspect
import json
import os
import pickle
import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from smalti.catalog import load_manifest
from smalti.compat.streaming.base.array import Array
from smalti.compat.streaming.base.dataset import StreamingDataset as MosaicDataset
from smalti.compat.streaming.base.format import reader_from_json, readers_of
from smalti.compat.streaming.base.format.mds import MDSReader
from smalti.compat.streaming.base.local import LocalDataset
from smalti.compat.streaming.base.storage.download import DOWNLOADER_MAPPINGS, LocalDownloader
from smalti.compat.streaming.base.stream import Stream, streams_registry
from smalti.compat.streaming.base.world import World
from smalti.dataset import StreamingDataset
from smalti.errors import IndexFileError, StoreNotFound
from smalti.stream import OpenStreams
from smalti.writer import MDSWriter
from tests.compat.streaming import peer_streams
from tests.peer_program import fork_alone
from tests.stream.test_splits import published

ALONE = World(1, 1, 1, 0)
SECOND = World(1, 2, 1, 1)
DEFAULTS = {"split": None, "download_retry": 1, "download_timeout": 60, "validate_hash": None, "keep_zip": False}
NUM_SAMPLES = 30


def sample(number):
    return {"n": number, "t": "x" * number}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A folder with two sets that Smalti wrote, `plain` and `zipped`, and `splits` with `train` and `val`."""
    folder = tmp_path_factory.mktemp("sets")
    for name, compression in {"plain": None, "zipped": "zstd:3"}.items():
        out = folder / name
        with MDSWriter(out=out, columns={"n": "int", "t": "str"}, size_limit=400, compression=compression) as writer:
            for number in range(NUM_SAMPLES):
                writer.write(sample(number))
    published(folder / "splits", "train", "val")
    return folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty folder for temporary folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ready(kind=Stream, **arguments):
    """Return a stream as it is after a dataset has filled in its defaults."""
    stream = kind(**arguments)
    stream.apply_default(DEFAULTS)
    return stream


# ------------------------------------------------------------------ MosaicML's own


@pytest.mark.process
@pytest.mark.slow
def test_streams_readers_and_local_datasets_show_what_mosaicmls_show(peer, sets, shared, tmp_path):
    golden = ("arrays", "comp_zstd_3", "comp_br_5", "jsonl", "csv", "tsv", "one_per_shard")
    folders = [[str(shared / "golden" / name), None] for name in golden]
    folders += [[str(sets / "plain"), None], [str(sets / "zipped"), None], [str(sets / "splits"), "val"]]
    python, paths = peer
    theirs, ours = tmp_path / "theirs.json", tmp_path / "ours.json"
    fork_alone(python, paths, [peer_streams.__file__, "streaming", json.dumps(folders), theirs])
    peer_streams.main("smalti.compat.streaming", json.dumps(folders), ours)
    expected, found = json.loads(theirs.read_text()), json.loads(ours.read_text())
    assert len(expected) == 1 + len(folders)
    assert found.keys() == expected.keys()
    for name, facts in expected.items():
        assert found[name] == facts, name


# ------------------------------------------------------------------ streams


def test_a_stream_has_only_the_weights_and_options_that_were_given(tmp_path):
    stream = Stream(local=str(tmp_path), repeat=0.5, download_retry=3)
    names = ("proportion", "repeat", "choose", "download_retry", "download_timeout", "keep_zip", "safe_keep_zip")
    assert {name: getattr(stream, name) for name in names if hasattr(stream, name)} == {
        "repeat": 0.5,
        "download_retry": 3,
    }
    assert (stream.remote, stream.local, stream.split, stream.validate_hash) == (None, str(tmp_path), "", None)
    stream.apply_default({**DEFAULTS, "split": "train", "download_retry": 7, "validate_hash": "sha1"})
    assert (stream.download_retry, stream.download_timeout, stream.split) == (3, 60, "train")
    assert (stream.validate_hash, stream.keep_zip, stream.safe_keep_zip) == ("sha1", False, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"proportion": 1, "choose": 1}, "At most one of"),
        ({"proportion": -1}, "`proportion` must be non-negative"),
        ({"repeat": -0.5}, "`repeat` must be non-negative"),
        ({"choose": -1}, "`choose` must be non-negative"),
        ({"download_retry": -1}, "`download_retry` must be non-negative"),
        ({"download_timeout": 0}, "`download_timeout` must be positive"),
        ({"remote": "gopher://host/set"}, "Unsupported remote path"),
    ],
)
def test_wrong_arguments_are_refused_by_the_constructor(tmp_path, arguments, words):
    with pytest.raises(ValueError, match=words):
        Stream(**{"local": str(tmp_path), **arguments})


def test_without_local_a_temporary_folder_is_made_that_must_not_exist(temporary):
    stream = Stream(remote="s3://bucket/set", split="train")
    # blake2s of the address, 16 bytes
    folder = temporary / "b32acd42a16a5d2918bd2caeeeca099d" / "train"
    assert Path(stream.local) == folder
    assert folder.is_dir()
    with pytest.raises(FileExistsError, match="temporary local directory"):
        Stream(remote="s3://bucket/set", split="train")


def test_neither_remote_nor_local_is_refused_when_the_dataset_takes_the_stream(temporary):
    stream = Stream(split="nowhere")
    with pytest.raises(ValueError, match="path must be provided"):
        stream.apply_default(DEFAULTS)
    with pytest.raises(ValueError, match="path must be provided"):
        stream.to_smalti()


def test_weights_set_after_the_constructor_count_and_derived_ones_do_not_replace_them(tmp_path):
    streams = [Stream(local=str(tmp_path)) for _ in range(2)]
    streams[0].proportion, streams[1].proportion = 1, 3
    assert Stream.validate_weights(streams) == (True, False)
    assert Stream.apply_weights(streams, np.array([10, 10]), 8, 0) == 8
    assert [(each.proportion, each.repeat, each.choose) for each in streams] == [(0.25, 0.2, 2), (0.75, 0.6, 6)]
    assert [(s.proportion, s.repeat, s.choose) for s in (each.to_smalti() for each in streams)] == [
        (1, None, None),
        (3, None, None),
    ]
    with pytest.raises(ValueError, match=r"at most one of .* \(error in stream 0\)"):
        Stream.validate_weights(streams)


def test_the_engine_gets_the_choices_of_the_stream_and_else_those_of_the_dataset(tmp_path):
    own = Stream(remote="s3://b/set", local=str(tmp_path), split="val", download_retry=0, keep_zip=True, choose=5)
    engine = own.to_smalti()
    assert (engine.remote, engine.cache.local, engine.split) == ("s3://b/set", str(tmp_path), "val")
    cache = engine.cache
    assert (cache.download_retry, cache.download_timeout, cache.keep_zip, engine.choose) == (1, 60.0, True, 5)
    assert own.download_retry == 0
    own.apply_default({**DEFAULTS, "download_timeout": 7.5, "validate_hash": "xxh64"})
    cache = own.to_smalti().cache
    assert (cache.download_timeout, cache.keep_zip, cache.validate_hash) == (7.5, True, "xxh64")


def test_the_index_is_fetched_by_the_first_process_of_a_machine_and_awaited_by_the_others(sets, tmp_path):
    leader, other = (ready(remote=str(sets / "plain"), local=str(tmp_path / "local")) for _ in range(2))
    found = []
    waiting = threading.Thread(target=lambda: found.append(other.get_shards(SECOND, False)))
    waiting.start()
    shards = leader.get_shards(ALONE, False)
    waiting.join(60)
    assert [shard.samples for shard in found[0]] == [shard.samples for shard in shards]
    late = ready(remote=str(sets / "plain"), local=str(tmp_path / "never"), download_timeout=0.1)
    with pytest.raises(RuntimeError, match="took too long to download"):
        late.get_shards(SECOND, False)


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, RuntimeError, "No `remote` provided, but local file"),
        ("", json.JSONDecodeError, "empty or corrupted"),
        ('{"version": 2, "shards": [', json.JSONDecodeError, "empty or corrupted"),
        ('{"version": 1, "shards": []}', ValueError, "Unsupported streaming data version: 1. Expected version 2"),
    ],
)
def test_a_missing_or_damaged_index_raises_what_mosaicml_raises(tmp_path, content, error, words):
    if content is not None:
        (tmp_path / "index.json").write_text(content)
    with pytest.raises(error, match=words):
        ready(local=str(tmp_path)).get_shards(ALONE, False)
    if content is not None:
        for make in (LocalDataset, lambda local: MosaicDataset(local=local)):
            with pytest.raises(error, match=words) as raised:
                make(str(tmp_path))
            assert isinstance(pickle.loads(pickle.dumps(raised.value)), IndexFileError)


def test_a_remote_without_an_index_raises_file_not_found(tmp_path):
    (tmp_path / "remote").mkdir()
    with pytest.raises(FileNotFoundError):
        ready(remote=str(tmp_path / "remote"), local=str(tmp_path / "local")).get_shards(ALONE, False)


def test_unsafe_columns_are_refused_unless_allowed(tmp_path):
    with MDSWriter(out=tmp_path, columns={"value": "pkl"}, allow_unsafe_types=True) as writer:
        writer.write({"value": {1, 2}})
    stream = ready(local=str(tmp_path))
    with pytest.raises(ValueError, match="contains an unsafe type: pkl"):
        stream.get_shards(ALONE, False)
    (shard,) = stream.get_shards(ALONE, True)
    assert shard[0] == {"value": {1, 2}}
    with pytest.raises(
        ValueError, match=r"unsafe type: pkl.*StreamingDataset\(local=\.\.\., allow_unsafe_types=True\)"
    ):
        LocalDataset(str(tmp_path))
    words = r"(?m)^Column value contains an unsafe type: pkl. To proceed anyway, set ``allow_unsafe_types=True``\.$"
    with pytest.raises(ValueError, match=words):
        MosaicDataset(local=str(tmp_path))


def test_a_damaged_file_is_refused_and_fetched_anew(sets, tmp_path):
    remote = tmp_path / "remote"
    shutil.copytree(sets / "plain", remote)
    stream = ready(remote=str(remote), local=str(tmp_path / "local"))
    shard = stream.get_shards(ALONE, False)[0]
    path = remote / shard.raw_data.basename
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"!")
    with pytest.raises(ValueError, match="Checksum failure"):
        stream.prepare_shard(shard)
    dataset = MosaicDataset(remote=str(remote), local=str(tmp_path / "other"), download_retry=1)
    for read in (dataset.get_item, dataset.prepare_shard):
        with pytest.raises(ValueError, match=f"^Checksum failure: .*{path.name}"):
            read(0)
    path.write_bytes(good)
    assert stream.prepare_shard(shard) == len(good)
    assert shard[0] == sample(0)


def test_a_hash_that_the_index_lacks_is_refused(sets, tmp_path):
    stream = ready(remote=str(sets / "plain"), local=str(tmp_path), validate_hash="sha1")
    with pytest.raises(ValueError, match=r"Hash algorithm `sha1` .* `\['xxh3_64'\]`"):
        stream.prepare_shard(stream.get_shards(ALONE, False)[0])
    with pytest.raises(ValueError, match=r"^Hash algorithm `sha1` .* `\['xxh3_64'\]`\. Provide one of those\. .*plain"):
        MosaicDataset(local=str(sets / "plain"), validate_hash="sha1")


def test_compressed_files_are_kept_where_they_are_the_only_copy(sets, tmp_path):
    local = tmp_path / "set"
    shutil.copytree(sets / "zipped", local)
    stream = ready(local=str(local))
    shard = stream.get_shards(ALONE, False)[0]
    assert stream.prepare_shard(shard) == shard.raw_data.bytes
    assert (local / shard.zip_data.basename).exists()
    assert shard[0] == sample(0)


# ------------------------------------------------------------------ classes of the user


class Logged(Stream):
    """Notes what it fetches."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.fetched = []

    def _download_file(self, from_basename, to_basename=None):
        self.fetched.append(from_basename)
        return super()._download_file(from_basename, to_basename)


class Half(Stream):
    """Takes every second shard."""

    def get_shards(self, world, allow_unsafe_types):
        return super().get_shards(world, allow_unsafe_types)[::2]


@pytest.mark.parametrize("name", ["plain", "zipped"])
def test_the_engine_reads_through_the_methods_of_a_class_that_fetches_its_own_way(sets, tmp_path, name):
    stream = ready(Logged, remote=str(sets / name), local=str(tmp_path / "local"))
    engine = stream.to_smalti()
    dataset = StreamingDataset(streams=[engine], batch_size=1, shuffle=False)
    assert list(dataset) == [sample(number) for number in range(NUM_SAMPLES)]
    stored = {file.basename for shard in load_manifest(sets / name).shards for file in shard.stored_files}
    assert set(stream.fetched) == {"index.json", *stored}
    # The engine has its own copies, and the stream's would take the space again.
    assert not any((tmp_path / "local" / basename).exists() for basename in stored)
    with pytest.raises(OSError, match="can only be read"):
        engine.remote.put("index.json", b"")
    again = pickle.loads(pickle.dumps(engine.remote))
    assert again.get(min(stored).removesuffix(".zstd"))[:4] == np.uint32(dataset.stream.shards[0].samples).tobytes()


def test_the_engine_reads_the_shards_that_a_class_chooses(sets, tmp_path):
    stream = ready(Half, remote=str(sets / "plain"), local=str(tmp_path))
    sizes = [shard.samples for shard in load_manifest(sets / "plain").shards]
    dataset = StreamingDataset(streams=[stream.to_smalti()], batch_size=1, shuffle=False)
    assert dataset.size == sum(sizes[::2])
    assert dataset[sizes[0]] == sample(sizes[0] + sizes[1])


@pytest.mark.parametrize("place", ["class", "instance"])
def test_the_engine_reads_through_methods_that_were_replaced(sets, tmp_path, monkeypatch, place):
    fetched = []
    if place == "class":
        original = Stream._download_file

        def download(self, from_basename, to_basename=None):
            fetched.append(from_basename)
            return original(self, from_basename, to_basename)

        monkeypatch.setattr(Stream, "_download_file", download)
    stream = ready(Stream, remote=str(sets / "plain"), local=str(tmp_path))
    if place == "instance":
        prepare = stream.prepare_shard
        stream.prepare_shard = lambda shard: (fetched.append(shard.raw_data.basename), prepare(shard))[1]
    dataset = StreamingDataset(streams=[stream.to_smalti()], batch_size=1, shuffle=False)
    assert list(dataset) == [sample(number) for number in range(NUM_SAMPLES)]
    assert {file.basename for shard in dataset.stream.shards for file in shard.stored_files} <= set(fetched)


class ShelfDownloader(LocalDownloader):
    """Downloads `shelf:///path` from that folder."""

    @staticmethod
    def _client_identifier():
        return "shelf"

    def _download_file_impl(self, remote, local, timeout):
        super()._download_file_impl(remote.removeprefix("shelf://"), local, timeout)


def test_the_engine_reads_through_a_downloader_of_the_user(sets, tmp_path, monkeypatch):
    monkeypatch.setitem(DOWNLOADER_MAPPINGS, "shelf", ShelfDownloader)
    stream = ready(remote=f"shelf://{sets}/splits", local=str(tmp_path), split="val")
    assert StreamingDataset(streams=[stream.to_smalti()])[9] == {"id": 19}


def test_a_stream_reads_every_address_of_the_engine(sets, tmp_path):
    stream = ready(remote=f"file://{sets}/plain/", local=str(tmp_path))
    first = stream.get_shards(ALONE, False)[0]
    assert stream.prepare_shard(first) == first.raw_data.bytes
    assert first[0] == StreamingDataset(streams=[stream.to_smalti()])[0] == sample(0)


def test_what_such_a_class_cannot_find_is_reported_by_name(sets, tmp_path):
    remote = tmp_path / "remote"
    shutil.copytree(sets / "plain", remote)
    store = ready(Logged, remote=str(remote), local=str(tmp_path / "local")).to_smalti().remote
    (gone, *_) = load_manifest(remote).shards
    (remote / gone.raw.basename).unlink()
    for key in (gone.raw.basename, "shard.99999.mds"):
        with pytest.raises(StoreNotFound, match=key):
            store.get(key)


def test_classes_are_registered_by_name():
    assert streams_registry.get("stream") is Stream
    assert streams_registry.get_all()["stream"] is Stream


# ------------------------------------------------------------------ readers


@pytest.fixture
def shard(sets):
    """The first shard of the plain set, read where it lies; it has at least three samples."""
    return ready(local=str(sets / "plain")).get_shards(ALONE, False)[0]


def test_a_reader_is_indexed_like_an_array(shard):
    size = len(shard)
    assert isinstance(shard, Array)
    assert isinstance(shard, MDSReader)
    assert shard[-1] == shard[np.int64(size - 1)] == shard.get_item(size - 1) == sample(size - 1)
    assert shard[:2] == shard[[0, 1]] == shard[np.arange(2)] == [sample(0), sample(1)]
    assert list(shard) == [sample(number) for number in range(size)]
    assert pickle.loads(pickle.dumps(shard))[2] == sample(2)
    assert shard.decode_sample(shard.get_sample_data(1)) == sample(1)
    for number in (size, -size - 1):
        with pytest.raises(IndexError, match="is not present"):
            shard[number]


def test_an_evicted_shard_raises_file_not_found_until_it_is_prepared_again(sets, tmp_path):
    stream = ready(remote=str(sets / "zipped"), local=str(tmp_path), keep_zip=True)
    shard = stream.get_shards(ALONE, False)[0]
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            shard[0]
        assert stream.prepare_shard(shard) == shard.get_max_size()
        assert shard[0] == sample(0)
        assert shard.evict() == shard.get_max_size()
        assert shard.evict() == 0


@pytest.mark.parametrize(
    ("keep_zip", "there", "left"),
    [
        (True, ("raw", "zip"), ("raw", "zip")),
        (True, ("raw",), ()),
        (True, ("zip",), ("zip",)),
        (False, ("raw", "zip"), ("raw",)),
        (False, ("raw",), ("raw",)),
        (False, ("zip",), ("zip",)),
        (False, (), ()),
    ],
)
def test_a_folder_is_brought_to_a_consistent_state(sets, tmp_path, keep_zip, there, left):
    stream = ready(remote=str(sets / "zipped"), local=str(tmp_path), keep_zip=keep_zip)
    shard = stream.get_shards(ALONE, False)[0]
    files = {"raw": shard.raw_data, "zip": shard.zip_data}
    for form in there:
        path = tmp_path / files[form].basename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(files[form].bytes))
    usage = np.zeros(1, np.int64)
    stream.set_up_local([shard], usage)
    assert [form for form in files if (tmp_path / files[form].basename).exists()] == list(left)
    assert usage.tolist() == [sum(files[form].bytes for form in left)]


def test_damaged_samples_raise_a_value_error(sets, tmp_path, shard):
    whole = shard.get_sample_data(2)
    for damaged in (whole[:-1], whole + b"x", b""):
        with pytest.raises(ValueError, match="damaged"):
            shard.decode_sample(damaged)
    local = tmp_path / "set"
    shutil.copytree(sets / "plain", local)
    cut = ready(local=str(local)).get_shards(ALONE, False)[0]
    os.truncate(local / cut.raw_data.basename, 20)
    with pytest.raises(ValueError, match="damaged"):
        cut[0]


def test_an_entry_of_another_version_or_format_or_with_an_unsafe_name_is_refused(sets):
    entry = load_manifest(sets / "plain").shards[0].to_json()
    for error in (ValueError, AssertionError):
        with pytest.raises(error, match=r"^Unsupported streaming data version: 3"):
            reader_from_json("", None, {**entry, "version": 3})
    for error in (ValueError, KeyError):
        with pytest.raises(error, match=r"^Unsupported data format: 'parquet'"):
            reader_from_json("", None, {**entry, "format": "parquet"})
    with pytest.raises(ValueError, match="Expected to be `mds`"):
        MDSReader.from_json("", None, {**entry, "format": "csv"})
    with pytest.raises(ValueError, match="not a safe file name"):
        reader_from_json("", None, {**entry, "raw_data": {**entry["raw_data"], "basename": "../shard.mds"}})
    with pytest.raises(ValueError, match="size_limit"):
        reader_from_json("", None, {**entry, "size_limit": -1})
    reader = reader_from_json("folder", "train", {**entry, "size_limit": "2kb"})
    assert (reader.dirname, reader.split, reader.size_limit) == ("folder", "train", 2048)
    assert reader.to_smalti().raw == load_manifest(sets / "plain").shards[0].raw


# ------------------------------------------------------------------ local datasets


class NamedReader(MDSReader):
    """A reader of a user's program with an argument of its own."""

    def __init__(self, dirname, split, title, **fields):
        super().__init__(dirname, split, **fields)
        self.title = title


def test_a_users_reader_has_its_own_arguments_and_the_fields_of_its_base(sets):
    entry, folder = load_manifest(sets / "plain").shards[0].to_json(), str(sets / "plain")
    reader = NamedReader.from_json(folder, None, {**entry, "title": "of mine"})
    assert list(inspect.signature(NamedReader).parameters) == ["dirname", "split", "title", "fields"]
    assert (reader.title, reader.split, reader.samples) == ("of mine", "", entry["samples"])
    same = MDSReader.from_json(folder, None, entry)
    positional = MDSReader(*(getattr(same, name) for name in inspect.signature(MDSReader).parameters))
    assert positional[0] == same[0] == reader[0]


def test_a_local_dataset_has_mosaicmls_attributes(sets):
    dataset = LocalDataset(str(sets / "plain"))
    assert (dataset.local, dataset.split, dataset.size, dataset.num_samples) == (str(sets / "plain"), "", 30, 30)
    assert dataset[-1] == dataset.get_item(29) == sample(29)
    assert [len(shard) for shard in dataset.shards] == dataset.spanner.shard_sizes.tolist()
    for wrong in (-1, 30, 10**6):
        with pytest.raises(IndexError, match=f"Invalid sample index `{wrong}`"):
            dataset.get_item(wrong)
    with pytest.raises(IndexError, match="Invalid sample index `1000000`"):
        dataset[10**6]
    with pytest.raises(ValueError, match="Unsupported argument type passed to __getitem__"):
        dataset["a"]
    number, row = dataset.spanner[20]
    assert dataset.shards[number][row] == dataset[20] == sample(20)
    assert pickle.loads(pickle.dumps(dataset))[3] == sample(3)


def test_a_folder_that_mosaicmls_reader_filled_opens_although_it_lacks_the_versions(sets, tmp_path):
    shutil.copytree(sets / "plain", tmp_path / "copy", ignore=shutil.ignore_patterns("_versions"))
    local = str(tmp_path / "copy")
    assert LocalDataset(local)[7] == sample(7)
    assert StreamingDataset(streams=[ready(local=local).to_smalti()])[7] == sample(7)


@pytest.mark.parametrize("copied", [False, True])
def test_a_split_is_read_from_its_folder(sets, tmp_path, copied):
    root = sets / "splits"
    if copied:
        shutil.copytree(root, tmp_path / "copy", ignore=shutil.ignore_patterns("_versions"))
        root = tmp_path / "copy"
    dataset = LocalDataset(str(root), "val")
    assert dataset.split == "val"
    assert [row["id"] for row in dataset] == list(range(10, 20))
    assert [row["id"] for shard in dataset.shards for row in shard] == list(range(10, 20))
    engine = ready(local=str(root), split="val").to_smalti()
    assert StreamingDataset(streams=[engine])[0] == {"id": 10}
    with pytest.raises(FileNotFoundError):
        LocalDataset(str(root), "test")


def test_readers_of_an_opened_split_have_names_below_its_folder(sets):
    (opened,) = OpenStreams([ready(local=str(sets / "splits"), split="train").to_smalti().options()]).sets
    (shard,) = readers_of(opened, str(sets / "splits"), "train")
    assert not shard.raw_data.basename.startswith("train/")
    assert shard[9] == {"id": 9}


def test_a_missing_set_raises_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        LocalDataset(str(tmp_path / "nothing"))
