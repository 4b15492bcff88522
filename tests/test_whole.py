"""Whole numbers as arguments: integers of Python, numpy and torch, and nothing else."""

import json

import numpy as np
import pytest
import torch

from smalti import Stream, history, open_dataset, rollback, tag
from smalti.attributes import whole_number, whole_or_none
from smalti.cache import CacheOptions
from smalti.compat.petastorm import DataLoader as RowLoader
from smalti.compat.petastorm import make_batch_reader
from smalti.dataset import OrderOptions
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from tests.compat.parquet_files import url, write_rows
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch

NO_WHOLE_NUMBERS = [3.5, 4.0, "4", True, np.True_, np.float64(4), -1, 0, [4]]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("whole") / "root", 40))


@pytest.mark.parametrize("value", [4, np.int64(4), np.uint8(4), np.array(4), torch.tensor(4)], ids=repr)
def test_every_integral_type_is_accepted_and_becomes_int(value):
    assert (whole_number("n", value, 1, 4), type(whole_number("n", value))) == (4, int)


def test_none_is_accepted_only_for_optional_numbers():
    assert whole_or_none("n", None, 1) is None
    with pytest.raises(ValueError, match="`n` must be a whole number from 1 to 9, found None"):
        whole_number("n", None, 1, 9)


@pytest.mark.parametrize("value", NO_WHOLE_NUMBERS, ids=repr)
def test_an_invalid_batch_size_is_refused_by_the_dataset_and_by_the_loader(root, value):
    with pytest.raises(ValueError, match="`batch_size` must be a whole number from 1 to 2147483647, found"):
        StreamingDataset(remote=root, batch_size=value)
    with pytest.raises(ValueError, match="`batch_size` must be a whole number from 1 to 2147483647, found"):
        StreamingDataLoader(StreamingDataset(remote=root), value)


@pytest.mark.parametrize("value", [*NO_WHOLE_NUMBERS[:-2], [4]], ids=repr)
def test_other_invalid_numbers_of_the_loader_are_refused(root, value):
    dataset = StreamingDataset(remote=root, batch_size=4)
    with pytest.raises(ValueError, match="`num_workers` must be a whole number from 0, found"):
        StreamingDataLoader(dataset, num_workers=value)
    with pytest.raises(ValueError, match="`prefetch_factor` must be a whole number from 0, found"):
        StreamingDataLoader(dataset, num_workers=2, prefetch_factor=value)
    with pytest.raises(ValueError, match="`num_samples` must be a whole number from 0, found"):
        dataset.state_dict(value)
    with pytest.raises(ValueError, match="`epoch` must be a whole number from 0 to"):
        dataset.set_epoch(value)
    with pytest.raises(ValueError, match="`version` must be a whole number from 0 to 4611686018427387903, found"):
        StreamingDataset(remote=root, version=value)


def test_numpy_integers_read_the_same_as_pythons_and_save_a_json_state(root):
    def read(number):
        dataset = StreamingDataset(
            streams=[
                Stream(remote=root, choose=number(30), version=number(1), cache=CacheOptions(download_retry=number(3)))
            ],
            batch_size=number(4),
            shuffle=True,
            shuffle_seed=number(7),
            order=OrderOptions(
                num_canonical_nodes=number(2), shuffle_block_size=number(16), sampling_granularity=number(2)
            ),
            cache=CacheOptions(cache_limit=number(1 << 30), predownload=number(8)),
            world=World.flat(number(1), number(2)),
        )
        dataset.set_epoch(number(3))
        loader = StreamingDataLoader(dataset, number(4), num_workers=number(2), prefetch_factor=number(2))
        batches = iter(loader)
        first = next(batches)["id"].tolist()
        batches.close()
        states = json.dumps([loader.state_dict(), dataset.state_dict(number(16), from_beginning=True)])
        return first, states, StreamingDataset(remote=root, epoch_size=number(20)).epoch_size

    assert read(np.int64) == read(int)


def test_versions_can_be_given_as_numpy_integers(tmp_path):
    root = str(write_set(tmp_path / "set", 4))
    write_set(root, 5, exist_ok=True)
    assert tag(root, "first", np.int64(1)) == 1
    assert (rollback(root, np.int64(1)).version, history(root)[-1].operation) == (3, "rollback")
    assert open_dataset(root, version=np.int64(2)).size == 5


def test_a_world_made_of_numpy_integers_equals_one_of_python_integers():
    world = World.flat(np.int64(1), np.int32(2))
    assert (world, type(world.rank), type(world.num_ranks)) == (World.flat(1, 2), int, int)


def test_petastorms_reader_and_loader_accept_numpy_integers(tmp_path):
    options = {"workers_count": np.int64(1), "num_epochs": np.int8(1), "seed": np.uint32(3), "batch_size": np.int64(5)}
    numbers = {"cur_shard": np.int64(0), "shard_count": np.int64(2)}
    with make_batch_reader(url(write_rows(tmp_path)), **options, **numbers) as reader:
        assert len(next(reader).id) == 5
        json.dumps(reader.state_dict())
    with make_batch_reader(url(tmp_path)) as reader:
        for value in (2.5, True, 0):
            with pytest.raises(ValueError, match="`batch_size` must be a whole number from 1, found"):
                RowLoader(reader, value)
        assert len(next(iter(RowLoader(reader, np.int64(7))))["id"]) == 7
