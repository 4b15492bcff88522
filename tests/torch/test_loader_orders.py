"""StreamingDataLoader with replicas, and with persistent workers that a loaded state gives another order."""

from itertools import islice

import pytest

from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from tests.reading_options import grouped
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("loader") / "root", 101))


def loader_of(root, *, batch=8, workers=0, loader=None, **options):
    dataset = StreamingDataset(remote=root, **grouped(**{"shuffle": True, "num_canonical_nodes": 4, **options}))
    return StreamingDataLoader(dataset, batch, num_workers=workers, **(loader or {}))


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


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
    saved = loader_of(root, shuffle_seed=77, num_canonical_nodes=5)
    state = saved.state_dict()
    loader = loader_of(
        root,
        num_canonical_nodes=None,
        workers=2,
        loader={"worker_kind": "process", "persistent_workers": True},
    )
    before = ids(loader)
    loader.load_state_dict(state)
    assert ids(loader) == ids(saved) != before
