"""StreamingDataLoader: every way of starting workers, with every way of using a loader."""

import json
import multiprocessing

import pytest
import torch

from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.combinations import nightly
from tests.shard_sets import write_set

SIZE = 53
STEPS = 14

pytestmark = pytest.mark.torch

SLOW = [pytest.mark.process, pytest.mark.slow]
WAYS = [
    pytest.param({}, id="alone"),
    pytest.param({"num_workers": 2, "worker_kind": "thread"}, id="threads"),
    pytest.param({"num_workers": 2, "multiprocessing_context": "fork"}, id="fork", marks=pytest.mark.process),
    pytest.param(
        {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
        id="fork-persistent",
        marks=SLOW,
    ),
    pytest.param(
        {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
        id="spawn",
        marks=[*SLOW, pytest.mark.nightly],
    ),
    pytest.param(
        {"num_workers": 1, "multiprocessing_context": "forkserver", "persistent_workers": True},
        id="forkserver",
        marks=SLOW,
    ),
]


class Labelled:
    """A collate function that any start method can send to a worker."""

    def __call__(self, samples):
        return {"id": torch.tensor([sample["id"] for sample in samples]), "label": samples[0]["text"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("matrix") / "root", SIZE))


@pytest.fixture(scope="module")
def epochs(root):
    """Batches of the first four epochs, read without workers."""
    loader = loader_of(root)
    return [ids(loader) for _ in range(4)]


@pytest.fixture(autouse=True)
def no_worker_is_left():
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


def loader_of(root, **options):
    return StreamingDataLoader(StreamingDataset(remote=root, shuffle=True), 4, **options)


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def taken(loader, steps):
    """Return the first batches of an iteration that then stops."""
    seen = []
    for batch in loader:
        seen.append(batch["id"].tolist())
        if len(seen) == steps:
            break
    return seen


@pytest.mark.parametrize("way", WAYS)
def test_break_resume_and_iterate_again(root, epochs, way):
    loader = loader_of(root, **way)
    assert taken(loader, 3) == epochs[0][:3]
    state = json.loads(json.dumps(loader.state_dict()))
    assert taken(loader, 2) == epochs[1][:2]  # left early: the next iteration is the next epoch
    loader.load_state_dict(state)
    assert ids(loader) == epochs[0][3:]
    assert ids(loader) == epochs[1]
    other = loader_of(root, **way)
    other.load_state_dict(loader.state_dict())
    assert taken(other, 1) == epochs[2][:1]
    assert len(epochs[0]) == STEPS


@pytest.mark.parametrize("way", [*WAYS[:3], *nightly(WAYS[3:4]), *WAYS[4:]])
def test_a_custom_collate_function_gets_the_same_samples(root, epochs, way):
    batches = list(loader_of(root, collate_fn=Labelled(), **way))
    assert ids(batches) == epochs[0]
    assert [batch["label"].split(" x")[0].rstrip() for batch in batches] == [
        f"sample {batch[0]}" for batch in epochs[0]
    ]


@pytest.mark.parametrize("way", [*WAYS[:3], *nightly(WAYS[3:4])])
def test_several_loaders_and_iterators_of_one_process_do_not_disturb_each_other(root, epochs, way):
    one, other = loader_of(root, **way), loader_of(root, **way)
    mixed = list(zip(one, other, strict=True))
    assert [pair[0]["id"].tolist() for pair in mixed] == epochs[0]
    assert [pair[1]["id"].tolist() for pair in mixed] == epochs[0]
    assert ids(one) == epochs[1]


@pytest.mark.parametrize("way", WAYS[:4])
def test_an_unused_iterator_begins_no_epoch(root, epochs, way):
    loader = loader_of(root, **way)
    iter(loader)
    assert loader.state_dict()["epoch"] == 0
    assert taken(loader, 2) == epochs[0][:2]
    iter(loader)
    assert loader.state_dict()["sample_in_epoch"] == 8
