"""StreamingDataLoader in MosaicML's orders and with replicas: what it counts, and where it resumes."""

import json
from itertools import islice

import pytest

from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch

PEER = {"shuffle": True, "shuffle_algo": "py1s", "num_canonical_nodes": 4}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("loader") / "root", 101))


def loader_of(root, *, batch=8, workers=0, loader=None, **options):
    dataset = StreamingDataset(local=root, **{**PEER, **options})
    return StreamingDataLoader(dataset, batch, num_workers=workers, **(loader or {}))


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.parametrize("kind", ["thread", pytest.param("process", marks=pytest.mark.process)])
def test_mosaicmls_order_does_not_depend_on_workers(root, kind):
    alone = ids(loader_of(root))
    assert ids(loader_of(root, workers=2, loader={"worker_kind": kind})) == alone
    assert {i for batch in alone for i in batch} == set(range(101))


def test_a_run_in_mosaicmls_order_resumes_after_every_step(root):
    """101 samples of 4 canonical nodes have 104 positions: 13 steps, the last samples after repeats."""
    whole = ids(loader_of(root))
    assert len(whole) == 13
    second = loader_of(root)
    second.streaming_dataset.set_epoch(1)
    second_epoch = ids(second)
    for steps in range(1, 14):
        loader = loader_of(root)
        batches = iter(loader)
        begun = ids(islice(batches, steps))
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = loader_of(root, workers=2)
        resumed.load_state_dict(state)
        assert begun + ids(resumed) == whole + (second_epoch if steps == 13 else [])


def test_replicas_save_the_same_state_and_read_the_same(root):
    def begin(rank):
        loader = loader_of(root, world=World.of_blocks(rank, 4, 1), replication=2, batch=5)
        return ids(islice(iter(loader), 3)), loader.state_dict()

    first, second, third, fourth = (begin(rank) for rank in range(4))
    assert first == second
    assert third == fourth
    assert first[0] != third[0]
    assert first[1] == third[1]
    assert first[1]["sample_in_epoch"] == 3 * 5 * 2


@pytest.mark.process
def test_persistent_workers_read_in_the_order_of_a_state_loaded_after_their_start(root):
    """The state has another seed and other canonical nodes than those with which the workers started."""
    saved = loader_of(root, shuffle_algo="window", shuffle_seed=77, num_canonical_nodes=5)
    state = saved.state_dict()
    loader = loader_of(
        root,
        shuffle_algo="window",
        num_canonical_nodes=None,
        workers=2,
        loader={"worker_kind": "process", "persistent_workers": True},
    )
    before = ids(loader)
    loader.load_state_dict(state)
    assert ids(loader) == ids(saved) != before
