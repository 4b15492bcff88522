"""StreamingDataset: local copies, shards, states and freedom of subclasses; `test_dataset_peer.py` compares orders."""

import json
import logging
import re
import shutil
import tempfile
from collections import UserDict
from hashlib import blake2s
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from smalti.compat.streaming.base import opening
from smalti.compat.streaming.base.array import Array
from smalti.compat.streaming.base.dataloader import StreamingDataLoader
from smalti.compat.streaming.base.dataset import StreamingDataset
from smalti.compat.streaming.base.sampling import get_sampling
from smalti.compat.streaming.base.stream import Stream
from smalti.compat.streaming.base.util import clean_stale_shared_memory
from smalti.dataset import StreamingDataset as EngineDataset
from smalti.errors import CursorError, ShardNotFound
from smalti.writer import MDSWriter
from tests.shard_sets import sample, write_set
from tests.typed_sets import plain, stored, write_typed_set

pytestmark = pytest.mark.torch

COUNT = 97


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("set") / "remote", COUNT))


@pytest.fixture
def local(tmp_path):
    return str(tmp_path / "local")


def ids_of(batches):
    return [number for batch in batches for number in batch["id"].tolist()]


def shard_files(folder):
    return sorted(path for path in Path(folder).rglob("*.mds"))


# ------------------------------------------------------------------ local copies


def test_shards_and_index_lie_in_local_under_their_own_names(remote, local):
    dataset = StreamingDataset(remote=remote, local=local, batch_size=4)
    assert Path(local, "index.json").read_bytes() == Path(remote, "index.json").read_bytes()
    assert not shard_files(local), "nothing is fetched before it is needed"
    assert [row["id"] for row in dataset] == list(range(COUNT))
    there = {path.relative_to(remote): path.read_bytes() for path in shard_files(remote)}
    assert {path.relative_to(local): path.read_bytes() for path in shard_files(local)} == there
    first = dataset.shards[0]
    assert Path(local, first.split, first.file_pairs[0][0].basename).exists()
    assert first[3]["id"] == dataset[3]["id"] == 3


def test_the_split_is_a_folder_below_remote_and_local(tmp_path):
    write_set(tmp_path / "remote" / "train", 12)
    dataset = StreamingDataset(remote=str(tmp_path / "remote"), local=str(tmp_path / "local"), split="train")
    assert dataset[11]["id"] == 11
    assert (tmp_path / "local" / "train" / "index.json").exists()
    assert len(shard_files(tmp_path / "local" / "train")) == 1


def test_without_local_the_folder_is_mosaicmls_temporary_one(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dataset = StreamingDataset(remote=remote)
    folder = tmp_path / blake2s(remote.encode(), digest_size=16).hexdigest()
    assert Path(dataset.streams[0].local) == folder
    assert (folder / "index.json").exists()
    with pytest.raises(FileExistsError):
        StreamingDataset(remote=remote)


def test_a_folder_is_of_one_dataset_of_the_process_at_a_time(remote, local):
    dataset = StreamingDataset(remote=remote, local=local, batch_size=4)
    folders = re.escape(f"Reused local directory: ['{local}'] vs ['{local}']. Provide a different one")
    with pytest.raises(ValueError, match=rf"{folders}.*clean_stale_shared_memory\(\)"):
        StreamingDataset(remote=remote, local=local, batch_size=4)
    clean_stale_shared_memory()
    another = StreamingDataset(remote=remote, local=local, batch_size=4)
    assert [row["id"] for row in dataset] == [row["id"] for row in another] == list(range(COUNT))
    del dataset, another
    assert StreamingDataset(remote=remote, local=local, batch_size=4)[0]["id"] == 0
    assert StreamingDataset(local=remote)[0]["id"] == StreamingDataset(local=remote)[0]["id"], "what is read in place"


def test_complete_copies_are_read_when_the_remote_is_gone(tmp_path, local):
    remote = tmp_path / "remote"
    write_set(remote, 30)
    assert len(list(StreamingDataset(remote=str(remote), local=local, batch_size=4))) == 30
    shutil.rmtree(remote)
    assert len(list(StreamingDataset(remote=str(remote), local=local, batch_size=4))) == 30


def test_a_compressed_set_is_unpacked_beside_its_files_and_stays(tmp_path):
    write_set(tmp_path / "set", 30, compression="zstd:3")
    before = sorted(tmp_path.rglob("*.zstd"))
    dataset = StreamingDataset(local=str(tmp_path / "set"), batch_size=4, cache_limit="1mb")
    assert len(list(dataset)) == 30
    assert sorted(tmp_path.rglob("*.zstd")) == before
    assert len(shard_files(tmp_path)) == len(before)


def test_a_cache_limit_holds_and_files_of_the_user_stay(remote, local):
    limit = 8000
    dataset = StreamingDataset(remote=remote, local=local, batch_size=4, shuffle=True, cache_limit=limit)
    notes = Path(local, "notes.txt")
    notes.write_text("mine")
    for _ in range(2):
        for _ in dataset:
            assert dataset.cache_usage <= limit, "the index file counts, as in MosaicML Streaming"
    assert notes.read_text() == "mine"
    assert Path(local, "index.json").exists()


def test_shards_are_fetched_and_evicted_one_by_one(remote, local):
    dataset = StreamingDataset(remote=remote, local=local, batch_size=4)
    index_bytes = Path(local, "index.json").stat().st_size
    assert dataset.cache_usage == index_bytes
    with pytest.raises(ValueError, match="no shards present"):
        dataset.evict_coldest_shard()
    for shard_id in (0, np.int64(2)):
        dataset.prepare_shard(shard_id, blocking=False)
        assert Path(local, dataset.shards[shard_id].file_pairs[0][0].basename).exists()
    sizes = [shard.get_raw_size() for shard in dataset.shards]
    assert dataset.cache_usage == index_bytes + sizes[0] + sizes[2]
    dataset.evict_shard(0)
    assert dataset.cache_usage == index_bytes + sizes[2]
    dataset.evict_coldest_shard()
    assert dataset.cache_usage == index_bytes
    assert dataset[0]["id"] == 0, "it is fetched again"


def test_a_set_without_remote_is_never_evicted_and_that_is_logged_once(tmp_path, caplog):
    write_set(tmp_path / "set", 30)
    dataset = StreamingDataset(local=str(tmp_path / "set"), batch_size=4)
    opening.log_that_nothing_was_evicted.cache_clear()
    for shard_id in (0, 1):
        dataset.evict_shard(shard_id)
    assert caplog.text.count("Nothing was evicted") == 1
    assert [row["id"] for row in dataset] == list(range(30))
    assert dataset.cache_usage == sum(
        path.stat().st_size for path in (*shard_files(tmp_path), tmp_path / "set" / "index.json")
    )


def test_a_shard_that_is_gone_is_a_runtime_error(tmp_path, local):
    write_set(tmp_path / "remote", 30)
    dataset = StreamingDataset(remote=str(tmp_path / "remote"), local=local, batch_size=4, download_retry=1)
    shard_files(tmp_path / "remote")[-1].unlink()
    with pytest.raises(RuntimeError, match="Check if the shard file exists") as raised:
        dataset.get_item(29)
    assert isinstance(raised.value, ShardNotFound)


def rejected(**options):
    return lambda remote: StreamingDataset(local=remote, **options)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (rejected(sampling_method="x"), "Must be one of `balanced` or `fixed`."),
        (
            rejected(batching_method="x"),
            "Must be one of `random`, `stratified`, `per_stream`, or `device_per_stream`.",
        ),
        (lambda _: get_sampling([4], -1, 1, 0, 0, True), "`choose` must be at least 0, found -1"),
        (lambda _: get_sampling([4], 1, 0, 0, 0, True), "`granularity` must be at least 1, found 0"),
        (lambda _: get_sampling([4], 1, 1, -1, 0, True), "`seed` must be at least 0, found -1"),
        (lambda _: get_sampling([4], 1, 1, 0, -1, True), "`epoch` must be at least 0, found -1"),
    ],
)
def test_arguments_out_of_range_have_mosaicmls_messages(remote, call, text):
    with pytest.raises(ValueError, match=text):
        call(remote)


def test_a_cache_that_is_too_small_has_mosaicmls_messages(tmp_path, local):
    remote = str(write_set(tmp_path / "remote", 30))
    largest = StreamingDataset(local=remote, cache_limit="1mb").max_shard_size_across_all_streams
    for limit, text in (
        (100, r"Minimum cache usage \(.*\) is larger than the cache limit"),
        (4 * int(largest) - 1, r"Cache limit \(.*\) is too low\. Increase the `cache_limit`"),
    ):
        with pytest.raises(ValueError, match=text):
            StreamingDataset(remote=remote, local=local, cache_limit=limit)


def test_without_shuffle_the_algorithm_may_be_any(remote):
    dataset = StreamingDataset(local=remote, batch_size=4, shuffle_algo="unknown")
    assert [row["id"] for row in dataset] == list(range(COUNT))


# ------------------------------------------------------------------ streams


def test_streams_are_the_given_objects_with_derived_weights(tmp_path):
    for name, count in (("a", 30), ("b", 10)):
        write_set(tmp_path / name, count)
    streams = [Stream(local=str(tmp_path / "a"), proportion=0.5), Stream(local=str(tmp_path / "b"), proportion=0.5)]
    dataset = StreamingDataset(streams=streams, batch_size=4)
    assert dataset.streams is streams
    assert [(each.proportion, each.choose) for each in streams] == [(0.5, 20), (0.5, 20)]
    assert streams[1].repeat == 2.0
    assert dataset.stream_per_shard.tolist() == [0] * 4 + [1] * 2


class Renaming(Stream):
    """A stream that fetches by itself."""

    fetched = 0

    def _download_file(self, from_basename, to_basename=None):
        type(self).fetched += 1
        return super()._download_file(from_basename, to_basename)


def test_a_stream_of_the_user_fetches_its_own_way(remote, local):
    dataset = StreamingDataset(streams=[Renaming(remote=remote, local=local)], batch_size=4)
    assert [row["id"] for row in dataset] == list(range(COUNT))
    assert Renaming.fetched == 1 + dataset.num_shards


# ------------------------------------------------------------------ programs of users


class Pictures(StreamingDataset):
    """A dataset as users write them."""

    def __init__(self, remote, local, transform, **options):
        self.tokenizer = {"x": 1}
        super().__init__(remote=remote, local=local, **options)
        self.transform = transform

    def __getitem__(self, index):
        row = super().__getitem__(index)
        return {"id": row["id"], "twice": self.transform(row["id"])}


def twice(number):
    return 2 * number


@pytest.mark.process
def test_a_subclass_is_read_by_torchs_loader_with_workers(remote, local):
    dataset = Pictures(remote, local, twice, batch_size=4, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
    epochs = []
    for _ in range(2):
        batches = list(loader)
        assert all(batch["twice"].tolist() == [2 * number for number in batch["id"].tolist()] for batch in batches)
        epochs.append(ids_of(batches))
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(COUNT))
    assert epochs[0] != epochs[1]
    assert dataset.next_epoch == 2


class NamedAlike(StreamingDataset):
    """Has methods and attributes with names that an implementation could have chosen."""

    def __init__(self, **options):
        super().__init__(**options)
        self._samples = self._progress = self._shards = self._length = self._limit = "mine"

    def _open(self, path):
        raise AssertionError(path)

    _warn = _each_sample = _check = _prepare = _open


def test_private_names_of_a_subclass_are_its_own(remote, local):
    dataset = NamedAlike(remote=remote, local=local, batch_size=4, cache_limit="1mb")
    assert [row["id"] for row in dataset] == list(range(COUNT))
    assert dataset.state_dict(4, from_beginning=True)["sample_in_epoch"] == 4
    parents = {name for kind in IterableDataset.__mro__ for name in vars(kind)}
    for name in {*vars(StreamingDataset), *vars(StreamingDataset(local=remote))} - parents:
        assert not name.startswith("_") or name.startswith(("__", "_smalti")) or name in MOSAICMLS_NAMES, name


MOSAICMLS_NAMES = {
    "_abc_impl", "_each_slice_index", "_parallel_rank_world", "_parallel_worker_world", "_resume",
    "_resume_incr_epoch", "_set_shuffle_block_size", "_unique_rank_world", "_unique_worker_world",
}  # fmt: skip


@pytest.mark.process
def test_composers_way_of_saving_continues_in_mid_epoch(remote, tmp_path):
    """Composer counts samples itself, from the beginning of the epoch, in the main process."""

    def made(name):
        dataset = StreamingDataset(remote=remote, local=str(tmp_path / name), batch_size=4, shuffle=True)
        return dataset, DataLoader(dataset, batch_size=4, num_workers=2)

    _, loader = made("whole")
    whole = [ids_of(loader), ids_of(loader)]
    dataset, loader = made("first")
    assert ids_of(loader) == whole[0]
    begun = [batch for _, batch in zip(range(5), loader, strict=False)]
    state = dataset.state_dict(num_samples=20, from_beginning=True)
    assert state == {
        "epoch": 1,
        "sample_in_epoch": 20,
        "num_canonical_nodes": 1,
        "shuffle_seed": 9176,
        "initial_physical_nodes": 1,
    }
    dataset, loader = made("then")
    dataset.load_state_dict(json.loads(json.dumps(state)))
    assert ids_of(begun) + ids_of(loader) == whole[1]
    assert dataset.state_dict(0, from_beginning=False)["sample_in_epoch"] == 20


class MadeInWorker(IterableDataset):
    """A dataset that makes another one where it is iterated."""

    def __init__(self, folder):
        self.folder = folder

    def __iter__(self):
        yield from StreamingDataset(local=self.folder, batch_size=4)


@pytest.mark.process
def test_a_dataset_that_is_made_in_a_worker_is_divided_over_the_workers(remote):
    loader = DataLoader(MadeInWorker(remote), batch_size=4, num_workers=2)
    assert sorted(ids_of(loader)) == list(range(COUNT))


def test_ranks_of_a_launcher_read_different_samples(remote, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    parts = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        dataset = StreamingDataset(local=remote, batch_size=4)
        assert len(dataset) == 49
        parts.append([row["id"] for row in dataset])
    assert parts[0][:3] == [0, 2, 4]
    assert parts[1][:3] == [1, 3, 5]
    assert sorted({*parts[0], *parts[1]}) == list(range(COUNT))


def test_json_columns_are_collated_as_a_dict(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"meta": "json"}) as writer:
        for number in range(4):
            writer.write({"meta": {"width": number, "tags": [number, 1]}})
    dataset = StreamingDataset(local=str(tmp_path / "set"), batch_size=4)
    (batch,) = StreamingDataLoader(dataset, batch_size=4)
    assert batch["meta"]["width"].tolist() == [0, 1, 2, 3]


def test_values_of_a_logical_type_are_returned_as_they_are_stored(tmp_path):
    dataset = StreamingDataset(remote=write_typed_set(tmp_path / "typed", 5), local=str(tmp_path / "local"))
    for read in (dataset[3], dataset.shards[0][3]):
        assert plain(read) == plain(stored(3))


def test_samples_are_indexed_like_an_array(remote):
    dataset = StreamingDataset(local=remote)
    assert isinstance(dataset, Array)
    assert isinstance(dataset, IterableDataset)
    assert dataset[-1]["id"] == 96
    assert [row["id"] for row in dataset[2:5]] == [2, 3, 4]
    assert [[row["id"] for row in part] for part in dataset[np.array([[1, 2], [3, 4]])]] == [[1, 2], [3, 4]]
    for wrong in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            dataset[wrong]
    with pytest.raises(ValueError, match="Unsupported argument type"):
        dataset["3"]


def test_attributes_that_are_set_before_an_epoch_determine_it(remote):
    dataset = StreamingDataset(local=remote, batch_size=4)
    dataset.shuffle, dataset.shuffle_seed, dataset.num_canonical_nodes = True, 7, 2
    same = StreamingDataset(local=remote, batch_size=4, shuffle=True, shuffle_seed=7, num_canonical_nodes=2)
    assert [row["id"] for row in dataset] == [row["id"] for row in same]
    assert dataset.shuffle_block_size == 2_000_000


# ------------------------------------------------------------------ states


def test_two_iterators_of_a_dataset_both_read_their_epoch_to_its_end(remote):
    dataset = StreamingDataset(local=remote, batch_size=4, shuffle=True)
    first = iter(dataset)
    read = [next(first)["id"] for _ in range(10)]
    assert sorted(row["id"] for row in dataset) == list(range(COUNT))
    assert sorted([*read, *(row["id"] for row in first)]) == list(range(COUNT))


def of_release_0_1(dataset, samples, **own):
    """Return what `smalti.StreamingDataset` of release 0.1 saved in one of MosaicML's orders."""
    order = {"shuffle": True, "shuffle_block_size": 1 << 22, "algorithm": "py1e", "algorithm_version": 1}
    facts = {"cursor_version": 1, "digest": "0" * 64, "split": None, "epoch_size": COUNT} | order | own
    return dataset.state_dict(samples, from_beginning=True) | {"epoch": 0, "smalti": facts}


def test_a_state_that_smalti_saved_in_mosaicmls_order_continues(remote):
    whole = StreamingDataset(local=remote, batch_size=4, shuffle=True)
    expected = [row["id"] for row in whole]
    state = of_release_0_1(whole, 40)
    dataset = StreamingDataset(local=remote, batch_size=4, shuffle=True)
    with pytest.raises(CursorError, match=r"its order is 'py1e'.*from smalti.compat.streaming import StreamingDataset"):
        EngineDataset(remote=remote, batch_size=4, shuffle=True).load_state_dict(state)
    dataset.load_state_dict(state)
    assert [row["id"] for row in dataset] == expected[40:]


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ({"algorithm": "py1br"}, "`shuffle_algo='py1br'`, and this dataset has 'py1e'"),
        ({"shuffle": False}, "`shuffle=False`, and this dataset has True"),
        ({"shuffle_block_size": 64}, "`shuffle_block_size=64`, and this dataset has 512"),
        ({"mixture": {"sampling_method": "fixed"}}, "`sampling_method='fixed'`, and this dataset has 'balanced'"),
    ],
    ids=["shuffle", "stored order", "block", "mixture"],
)
def test_a_state_that_smalti_saved_in_another_order_names_the_option(remote, own, text):
    dataset = StreamingDataset(local=remote, batch_size=4, shuffle=True, shuffle_block_size=512)
    state = of_release_0_1(dataset, 40, **{"shuffle_block_size": 512, **own})
    with pytest.raises(CursorError, match=text):
        dataset.load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "text"),
    [({"epoch": 1}, "'sample_in_epoch'"), (None, "`window`")],
    ids=["a key is missing", "Smalti's own order"],
)
def test_a_state_that_cannot_continue_is_refused_when_it_is_loaded(remote, state, text):
    if state is None:
        state = EngineDataset(remote=remote, batch_size=4).state_dict()
    with pytest.raises(CursorError, match=text):
        StreamingDataset(local=remote, batch_size=4).load_state_dict(state)


def test_a_state_with_a_value_that_json_cannot_hold_is_a_type_error(remote):
    dataset = StreamingDataset(local=remote, batch_size=4)
    with pytest.raises(TypeError, match=r"saved state: .*int64"):
        dataset.load_state_dict(dataset.state_dict(0, from_beginning=True) | {"epoch": np.int64(0)})


def logged(caplog):
    return [(record.name, record.levelname, " ".join(record.getMessage().split()[:4])) for record in caplog.records]


def test_defaults_are_logged_under_mosaicmls_names(remote, caplog):
    with caplog.at_level(logging.INFO, logger="streaming"):
        next(iter(StreamingDataset(local=remote, batch_size=4)))
    names = ("predownload", "num_canonical_nodes", "shuffle_block_size")
    expected = [("streaming.base.dataset", "INFO", f"Because `{name}` was not") for name in names]
    assert logged(caplog) == expected
    caplog.clear()
    dataset = StreamingDataset(local=remote, batch_size=4, predownload=8, num_canonical_nodes=1, shuffle_block_size=50)
    with caplog.at_level(logging.INFO, logger="streaming"):
        next(iter(dataset))
    assert not caplog.records


def test_replication_is_warned_of_from_the_first_sample(remote, caplog, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    next(iter(StreamingDataset(local=remote, batch_size=4, replication=2)))
    assert "`replication` arg has been set to 2 and training is resuming from sample 0." in caplog.text


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_batches_that_are_dropped_and_a_rounded_start_are_warned_of(remote, caplog, method):
    """97 samples are 24 batches of 4, and one sample."""
    dataset = StreamingDataset(local=remote, batch_size=4, batching_method=method)
    dataset.load_state_dict(dataset.state_dict(0, from_beginning=True) | {"epoch": 0, "sample_in_epoch": 6})
    rounded = "multiple of the current global batch size of 4. Resuming training after the most recently finished"
    if method == "stratified":
        with pytest.warns(UserWarning, match=rounded):
            next(iter(dataset))
    else:
        next(iter(dataset))
        assert rounded in caplog.text
    assert {record.name for record in caplog.records} == {f"streaming.base.batching.{method}"}
    verb = "are being" if method == "stratified" else "will be"
    assert f"`{method}` batching method, some batches with an inadequate number of samples" in caplog.text
    assert f"from stream with index 0 {verb} dropped." in caplog.text


def test_py1e_warns_of_a_streams_share_of_the_shuffle_block(remote):
    """A stream's shards of up to 97 samples, and a block of 8 for it."""
    arguments = {"shuffle": True, "shuffle_block_size": 8, "batching_method": "per_stream"}
    with pytest.warns(UserWarning, match="Shuffle block size was smaller than shard size for some shards. This will"):
        next(iter(StreamingDataset(local=remote, batch_size=4, **arguments)))


def test_a_state_of_an_earlier_epoch_has_no_effect_and_says_so(remote, caplog):
    dataset = StreamingDataset(local=remote, batch_size=4)
    state = dataset.state_dict(0, from_beginning=True) | {"epoch": 0, "sample_in_epoch": 40}
    dataset.next_epoch = 2
    with caplog.at_level(logging.WARNING):
        dataset.load_state_dict(state)
    assert "set `next_epoch` first" in caplog.text.replace("\n", " ")
    assert len(list(dataset)) == COUNT
    assert dataset.next_epoch == 3
    dataset.next_epoch = 0
    assert len(list(dataset)) == COUNT - 40


def test_before_the_first_epoch_a_state_is_of_none(remote):
    dataset = StreamingDataset(local=remote, batch_size=4)
    assert dataset.state_dict(0, from_beginning=False)["epoch"] == -1


# ------------------------------------------------------------------ the loader


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(5, 2), 5),
        ({"a": [1, 2, 3]}, 3),
        (UserDict(a=torch.zeros(4)), 4),
        ([torch.zeros(6), torch.zeros(6)], 6),
    ],
    ids=["a tensor", "a dict", "a mapping, as of transformers", "a list of columns"],
)
def test_the_loader_counts_the_samples_of_a_batch(remote, batch, size):
    loader = StreamingDataLoader(StreamingDataset(local=remote, batch_size=4), batch_size=4)
    assert loader._get_batch_size(batch) == size


def test_an_empty_batch_is_refused(remote):
    loader = StreamingDataLoader(StreamingDataset(local=remote, batch_size=4), batch_size=4)
    with pytest.raises(ValueError, match="Batch is empty"):
        loader._get_batch_size({})


def test_a_loader_of_another_dataset_has_no_state():
    loader = StreamingDataLoader([sample(0), sample(1)])
    assert loader.state_dict() is None
    loader.load_state_dict({"epoch": 1})
    assert len(list(loader)) == 2
    assert loader.num_samples_yielded == 2


def test_replicas_are_counted_once_in_the_loaders_state(remote, monkeypatch):
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    dataset = StreamingDataset(local=remote, batch_size=4, replication=2)
    loader = StreamingDataLoader(dataset, batch_size=4)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["sample_in_epoch"] == 8


@pytest.mark.parametrize("number", range(8))
def test_two_epochs_equal_those_read_by_mosaicml(shared, number):
    """Golden sets, with epochs recorded from MosaicML's own loader."""

    class Ids(StreamingDataset):
        def get_item(self, sample_id, retry=7):
            return sample_id

    golden = json.loads((shared / "golden" / "orders.json").read_text())["epochs"][number]
    recorded = [golden.pop("epoch0"), golden.pop("epoch1")]
    dataset = Ids(local=str(shared / "golden" / golden.pop("dataset")), shuffle=True, **golden)
    assert [list(dataset) for _ in range(2)] == recorded
