"""StreamingDataLoader: batches, resume, workers."""

import copy
import json
import multiprocessing
import os
import pathlib
import pickle
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from smalti.torch import StreamingDataLoader, StreamingDataset, gather_world
from smalti.world import World
from tests.reading_options import grouped
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch

SIZE = 101


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("loader") / "root", SIZE))


def loader_of(root, *, workers=0, batch=8, shuffle=True, **options):
    names = {
        "persistent_workers",
        "multiprocessing_context",
        "prefetch_factor",
        "collate_fn",
        "drop_last",
        "worker_kind",
    }
    loader_options = {name: options.pop(name) for name in names & set(options)}
    dataset = StreamingDataset(remote=root, shuffle=shuffle, **grouped(**options))
    return StreamingDataLoader(dataset, batch, num_workers=workers, **loader_options)


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def test_batches_are_dicts_of_tensors(root):
    batch = next(iter(loader_of(root, shuffle=False)))
    assert batch["id"].dtype == torch.int64
    assert batch["id"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert batch["vector"].shape == (8, 3)
    assert batch["text"][3] == "sample 3 xxx"


def test_the_loader_has_a_length_and_a_batch_size(root):
    loader = loader_of(root)
    assert len(loader) == 13
    assert loader.batch_size == 8
    assert len(list(loader)) == 13


@pytest.mark.process
@pytest.mark.parametrize("persistent", [False, True])
def test_each_epoch_with_workers_is_the_next_one(root, persistent):
    alone = loader_of(root)
    expected = [ids(alone), ids(alone), ids(alone)]
    loader = loader_of(root, workers=2, worker_kind="process", persistent_workers=persistent)
    assert [ids(loader), ids(loader), ids(loader)] == expected
    assert expected[0] != expected[1]


@pytest.mark.parametrize("taken", range(14))
def test_resume_after_every_step_gives_the_rest(root, taken):
    whole = loader_of(root)
    expected = ids(whole) + ids(whole)
    loader = loader_of(root)
    batches = iter(loader)
    before = [next(batches)["id"].tolist() for _ in range(min(taken, 13))]
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_of(root)
    resumed.load_state_dict(state)
    rest = ids(resumed)
    if taken < 13:
        rest += ids(resumed)
    assert before + rest == expected


@pytest.mark.process
@pytest.mark.parametrize("prefetch", [1, 4])
def test_the_state_counts_what_was_taken_not_what_was_prefetched(root, prefetch):
    loader = loader_of(root, workers=2, worker_kind="process", prefetch_factor=prefetch)
    batches = iter(loader)
    next(batches), next(batches)
    assert loader.state_dict()["sample_in_epoch"] == 16


@pytest.mark.process
def test_a_loader_resumes_in_its_persistent_workers(root):
    whole = ids(loader_of(root))
    loader = loader_of(root, workers=2, worker_kind="process", persistent_workers=True)
    batches = iter(loader)
    next(batches), next(batches), next(batches)
    state = loader.state_dict()
    list(batches)
    loader.load_state_dict(state)
    assert ids(loader) == whole[3:]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_loaders_view_and_copies_of_it_yield_the_batches_of_its_pass(root, persistent):
    """A view in a loader's own workers yields batches with their replacements, which no other reader gets."""
    loader = loader_of(root, workers=2, worker_kind="process", persistent_workers=persistent, on_error="skip")
    first = ids(loader)
    again = pickle.loads(pickle.dumps(loader.dataset)), copy.deepcopy(loader.dataset)
    for view in (loader.dataset, *again):
        assert [batch["id"].tolist() for batch in view] == first
    for workers in (0, 2):
        plain = DataLoader(loader.dataset, batch_size=None, num_workers=workers)
        assert [batch["id"].tolist() for batch in plain] == first
    assert ids(loader) != first, "the loader's workers go on"


def test_an_early_break_ends_the_epoch_and_the_next_is_complete(root):
    alone = loader_of(root)
    ids(alone)
    second = ids(alone)
    loader = loader_of(root)
    for _ in loader:
        break
    assert ids(loader) == second


def test_a_state_after_set_epoch_is_that_epochs_start(root):
    loader = loader_of(root)
    batches = iter(loader)
    next(batches), next(batches)
    loader.streaming_dataset.set_epoch(5)
    state = loader.state_dict()
    assert (state["epoch"], state["sample_in_epoch"]) == (5, 0)
    next(iter(loader))
    assert (loader.state_dict()["epoch"], loader.state_dict()["sample_in_epoch"]) == (5, 8)


def test_cursors_are_equal_on_all_ranks(root):
    states = []
    for rank in range(3):
        loader = loader_of(root, batch=4, world=World.flat(rank, 3))
        batches = iter(loader)
        next(batches), next(batches)
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]
    assert states[0]["sample_in_epoch"] == 24


def test_all_ranks_take_the_same_number_of_batches(root):
    counts = {len(list(loader_of(root, batch=4, world=World.flat(rank, 5)))) for rank in range(5)}
    assert counts == {6}


def test_drop_last_leaves_out_the_incomplete_step(root):
    batches = ids(loader_of(root, drop_last=True))
    assert [len(batch) for batch in batches] == [8] * 12


def test_after_an_epoch_with_drop_last_the_state_is_the_next_epoch(root):
    loader = loader_of(root, drop_last=True)
    list(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["sample_in_epoch"]) == (1, 0)


def test_a_custom_collate_gets_samples(root):
    loader = loader_of(root, shuffle=False, collate_fn=lambda samples: [s["text"] for s in samples])
    assert next(iter(loader))[:2] == ["sample 0 ", "sample 1 x"]


def test_a_per_sample_transform_reaches_the_batch(root):
    loader = loader_of(root, shuffle=False, transform=lambda s: {"twice": s["id"] * 2})
    assert next(iter(loader))["twice"].tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


@pytest.mark.process
def test_an_exception_in_a_workers_transform_reaches_the_consumer(root):
    def fail(columns):
        raise RuntimeError("augmentation went wrong")

    fail.on_batches = True
    with pytest.raises(RuntimeError, match="augmentation went wrong"):
        list(loader_of(root, workers=2, worker_kind="process", transform=fail))


def read_on_after_killing(worker, batches):
    os.kill(worker.pid, signal.SIGKILL)  # torch may raise at once, whatever the main thread is doing then
    return list(batches)


@pytest.mark.process
def test_a_killed_worker_is_an_error_and_the_next_epoch_works(root):
    loader = loader_of(root, workers=2, worker_kind="process", batch=2, prefetch_factor=1)
    before, batches = set(multiprocessing.active_children()), iter(loader)
    next(batches)
    workers = set(multiprocessing.active_children()) - before
    with pytest.raises(RuntimeError, match=r"(?i)worker.*(exited|killed)"):
        read_on_after_killing(workers.pop(), batches)
    assert len(ids(loader)) == 51


@pytest.mark.process
@pytest.mark.parametrize("persistent", [False, True])
def test_a_failed_epoch_leaves_no_workers_and_the_next_one_works(root, persistent):
    def fail_at_first(columns):
        if broken.exists():
            raise RuntimeError("augmentation went wrong")
        return columns

    fail_at_first.on_batches = True
    broken = pathlib.Path(root) / "broken"
    broken.touch()
    before = set(multiprocessing.active_children())
    loader = loader_of(root, workers=2, worker_kind="process", transform=fail_at_first, persistent_workers=persistent)
    with pytest.raises(RuntimeError, match="augmentation went wrong") as kept:
        list(loader)
    assert set(multiprocessing.active_children()) == before
    broken.unlink()
    assert sum(len(batch) for batch in ids(loader)) == 104
    assert kept.value is not None
    if persistent:
        # The traceback makes a circle with the loader, and torch waits 5 s for each worker that is collected with one.
        loader._iterator._shutdown_workers()


def test_two_batch_sizes_that_differ_are_refused(root):
    with pytest.raises(ValueError, match="`batch_size` is 8 for the loader and 4 for the dataset"):
        StreamingDataLoader(StreamingDataset(remote=root, batch_size=4), 8)


def test_no_batch_size_is_refused(root):
    with pytest.raises(ValueError, match="`batch_size` is needed"):
        StreamingDataLoader(StreamingDataset(remote=root))


def test_shuffle_on_the_loader_points_to_the_dataset(root):
    with pytest.raises(ValueError, match="give it `shuffle=True`"):
        StreamingDataLoader(StreamingDataset(remote=root, batch_size=4), shuffle=True)


def test_another_dataset_is_refused():
    with pytest.raises(TypeError, match="must be a smalti StreamingDataset, found list"):
        StreamingDataLoader([1, 2, 3], 2)


def test_a_plain_torch_loader_reads_the_dataset(root):
    dataset = StreamingDataset(remote=root, batch_size=8, shuffle=True)
    plain = DataLoader(dataset, batch_size=8, collate_fn=lambda samples: [s["id"] for s in samples])
    assert list(plain) == ids(loader_of(root))


def test_a_dataset_can_be_pickled_before_and_after_use(root):
    dataset = StreamingDataset(remote=root, batch_size=8)
    assert pickle.loads(pickle.dumps(dataset))[3]["id"] == 3
    assert dataset[4]["id"] == 4
    assert pickle.loads(pickle.dumps(dataset))[5]["id"] == 5


def test_batches_are_independent_of_each_other_and_of_the_file(root):
    """Writing into a batch must not reach the shard."""
    loader = loader_of(root, shuffle=False)
    for batch in loader:
        batch["vector"].zero_()
    assert np.array_equal(StreamingDataset(remote=root)[1]["vector"], [1.0, 0.5, -1.0])


def test_without_a_process_group_the_world_is_that_of_the_launcher():
    assert gather_world() == World()


def test_a_loader_opens_nothing_before_it_is_iterated(tmp_path):
    dataset = StreamingDataset(remote=str(tmp_path / "comes later"), shuffle=True)
    for workers in ({}, {"num_workers": 2}, {"num_workers": 2, "worker_kind": "process", "persistent_workers": True}):
        StreamingDataLoader(dataset, 4, **workers)
