"""A StreamingDataset in torch's own DataLoader with worker processes, as Composer and most public code read it.

What is read is compared with what the same DataLoader without workers reads: the order of one reader alone.
"""

import copy
import functools
import json
import multiprocessing
import os
import pickle
import re
import threading

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from smalti.catalog import merge_index
from smalti.errors import CursorError
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from tests.combinations import nightly
from tests.reading_options import grouped
from tests.shard_sets import write_set

pytestmark = [pytest.mark.torch, pytest.mark.process]

SIZE = 160  # 20 batches of 8
ANEW, PERSISTENT = pytest.param({}, id="anew"), pytest.param({"persistent_workers": True}, id="persistent")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("plain") / "root", SIZE))


@pytest.fixture(scope="module")
def epochs(root):
    """The first four epochs, in batches of sample ids."""
    loader = loader_of(dataset_of(root), workers=0)
    return [list(loader) for _ in range(4)]


def dataset_of(root, **options):
    return StreamingDataset(remote=root, batch_size=8, shuffle=True, **grouped(**options))


def ids_of(samples):
    return [each["id"] for each in samples]


def flat(lists):
    return [each for one in lists for each in one]


def loader_of(dataset, *, workers=2, **options):
    return DataLoader(dataset, batch_size=8, num_workers=workers, collate_fn=ids_of, **options)


def taken(loader, count):
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


def read_without_length(loader):
    """Read batches without `list`, which asks for the length and so would open the dataset in the program."""
    return [batch for batch in loader]  # noqa: C416 - see above


def refusal_of(loader):
    """Return the error of a worker. Workers are ended at once: those that a traceback keeps alive end seconds later."""
    batches = iter(loader)
    try:
        with pytest.raises(CursorError) as caught:
            read_without_length(batches)
        return str(caught.value)
    finally:
        batches._shutdown_workers()


# ---------------------------------------------------------------------- Composer's sequence


@pytest.mark.parametrize("how", [ANEW, *nightly([PERSISTENT])])
def test_composers_sequence_gives_the_remaining_samples_and_then_complete_epochs(root, epochs, how):
    """160 samples, 40 of them read and saved by the program: the other 120 follow in their order, and then 160."""
    dataset = dataset_of(root)
    before = taken(loader_of(dataset, **how), 5)
    state = json.loads(json.dumps(dataset.state_dict(40, True)))
    assert (state["epoch"], state["sample_in_epoch"]) == (0, 40)
    resumed = dataset_of(root)
    resumed.load_state_dict(state)
    loader = loader_of(resumed, **how)
    rest, whole = list(loader), list(loader)
    assert before + rest == epochs[0]
    assert (len(rest), whole) == (15, epochs[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "persistent"), [pytest.param("spawn", False, marks=pytest.mark.nightly), ("forkserver", True)]
)
def test_composers_sequence_works_if_workers_share_nothing_with_the_program(root, epochs, method, persistent):
    dataset = dataset_of(root)
    loader = loader_of(dataset, multiprocessing_context=method, persistent_workers=persistent)
    before = taken(loader, 5)
    dataset.load_state_dict(json.loads(json.dumps(dataset.state_dict(40, True))))
    assert before + list(loader) == epochs[0]
    if persistent:  # others would take seconds more to start
        assert list(loader) == epochs[1]
    assert dataset.next_epoch == (2 if persistent else 1)


@pytest.mark.parametrize("how", [*nightly([ANEW]), PERSISTENT])
def test_each_epoch_is_the_next_one_and_a_later_one_resumes(root, epochs, how):
    dataset = dataset_of(root)
    loader = loader_of(dataset, workers=3, **how)
    assert [list(loader), list(loader)] == epochs[:2]
    before = taken(loader, 7)
    state = dataset.state_dict(56, True)
    assert (state["epoch"], state["sample_in_epoch"], dataset.next_epoch) == (2, 56, 3)
    dataset.load_state_dict(state)  # with persistent workers into those that live
    assert before + list(loader) == epochs[2]
    assert list(loader) == epochs[3]
    dataset.set_epoch(1)
    assert list(loader) == epochs[1]


def test_a_state_counts_from_the_start_of_the_iteration_or_of_the_epoch(root):
    dataset = dataset_of(root)
    dataset.load_state_dict(dataset.state_dict(40, True))
    taken(loader_of(dataset), 2)
    assert dataset.state_dict(16)["sample_in_epoch"] == 56
    assert dataset.state_dict(56, True)["sample_in_epoch"] == 56
    assert dataset.state_dict(160, True)["epoch"] == 1
    assert dataset.cursor().epoch == 1


def test_a_run_resumes_with_other_workers_another_batch_size_and_another_loader(root, epochs):
    first = dataset_of(root)
    before = taken(loader_of(first, workers=3), 4)
    second = StreamingDataset(remote=root, batch_size=16, shuffle=True)
    second.load_state_dict(first.state_dict(32, True))
    middle = taken(DataLoader(second, batch_size=16, num_workers=2, collate_fn=ids_of), 2)
    third = dataset_of(root)
    third.load_state_dict(second.state_dict(32 + 32, True))
    rest = [batch["id"].tolist() for batch in StreamingDataLoader(third)]
    assert flat(before + middle + rest) == flat(epochs[0])


def test_two_ranks_share_every_epoch(root):
    read = []
    for rank in range(2):
        dataset = dataset_of(root, world=World.flat(rank, 2))
        loader = loader_of(dataset)
        before = [*list(loader), *taken(loader, 4)]
        dataset.load_state_dict(dataset.state_dict(64, True))
        read.append(flat(before + list(loader)))
    assert sorted(read[0] + read[1]) == sorted([*range(SIZE), *range(SIZE)])


# ---------------------------------------------------------------------- workers of one iteration


def test_epochs_follow_each_other_if_torch_is_seeded_before_each(root, epochs):
    """All iterations have the same base seed, and those that stopped early ended before all workers had read."""
    dataset, found = dataset_of(root), []
    for _ in range(2):
        torch.manual_seed(3)
        taken(loader_of(dataset), 1)
        torch.manual_seed(3)
        found.append(list(loader_of(dataset)))
    assert found == [epochs[1], epochs[3]]


def wait_if_second(event, worker):
    if worker:
        event.wait(60)


def test_two_concurrent_loaders_with_equal_seeds_each_read_one_epoch(root, epochs):
    dataset, context, found = dataset_of(root), multiprocessing.get_context("fork"), []
    events = [context.Event(), context.Event()]
    for event in events:
        torch.manual_seed(3)
        batches = iter(loader_of(dataset, worker_init_fn=functools.partial(wait_if_second, event)))
        found.append((batches, [next(batches)]))
    for event, (batches, first) in zip(events, found, strict=True):
        event.set()
        first.extend(batches)
    assert [read for _, read in found] == epochs[:2]


class ForkAfterAnother(multiprocessing.get_context("fork").Process):
    """A process that lets another thread start a process before it starts."""

    def start(self):
        thread = threading.Thread(target=multiprocessing.get_context("fork").Process(target=os.getpid).start)
        thread.start()
        thread.join()
        super().start()


class ForkAfterAnotherContext(type(multiprocessing.get_context("fork"))):
    Process = ForkAfterAnother


def test_workers_form_one_iteration_whatever_other_threads_start(root, epochs):
    loader = loader_of(dataset_of(root), workers=3, multiprocessing_context=ForkAfterAnotherContext())
    assert [list(loader), list(loader)] == epochs[:2]


def test_an_iteration_that_stops_early_counts_as_an_epoch(root, epochs):
    dataset = dataset_of(root)
    loader = loader_of(dataset)
    for _ in loader:
        break
    assert (list(loader), dataset.next_epoch) == (epochs[1], 2)


def test_two_loaders_over_one_dataset_read_alternate_epochs(root, epochs):
    dataset = dataset_of(root)
    one, other = loader_of(dataset), loader_of(dataset, workers=1)
    first = iter(one)
    begun = [next(first)]
    second = iter(other)
    assert [next(second), *second] == epochs[1]
    assert begun + list(first) == epochs[0]
    assert list(one) == epochs[2]


def test_copies_of_a_dataset_are_independent(root, epochs):
    dataset = dataset_of(root)
    list(loader_of(dataset))
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert [list(loader_of(other)), list(loader_of(other))] == epochs[1:3]
    assert list(loader_of(dataset)) == epochs[1]


class Endless(IterableDataset):
    """A dataset that reads another one again and again, independently in each worker."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        while True:
            yield from self.dataset


def test_workers_that_begin_further_epochs_on_their_own_agree_on_them(root, epochs):
    assert taken(loader_of(Endless(dataset_of(root))), 60) == flat(epochs[:3])


def pause_second(worker):
    """Delay the second worker until the first one has been read."""
    if worker == 1:
        assert _go_on.wait(60)


_go_on = multiprocessing.get_context("fork").Event()


def test_the_program_knows_the_epoch_when_only_some_workers_have_begun(root, epochs):
    dataset = dataset_of(root)
    batches = iter(loader_of(dataset, worker_init_fn=pause_second, prefetch_factor=2))
    read = [next(batches)]
    assert dataset.state_dict(8, True)["sample_in_epoch"] == 8
    assert dataset.next_epoch == 1
    _go_on.set()
    assert read + list(batches) == epochs[0]


# ---------------------------------------------------------------------- other processes


def read_an_epoch(dataset, queue):
    queue.put([list(loader_of(dataset)), list(loader_of(dataset))])


def test_a_forked_rank_begins_at_its_parents_place_and_does_not_change_it(root, epochs):
    dataset = dataset_of(root)
    list(loader_of(dataset))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    rank = context.Process(target=read_an_epoch, args=(dataset, queue))
    rank.start()
    found = queue.get()
    rank.join(120)
    assert found == epochs[1:3]
    assert (dataset.next_epoch, list(loader_of(dataset))) == (1, epochs[1])


class MadeInWorker(IterableDataset):
    """A dataset that makes a StreamingDataset in the worker, where the epoch is unknown."""

    def __init__(self, root, epoch=None):
        self.root, self.epoch = root, epoch

    def __iter__(self):
        dataset = dataset_of(self.root)
        if self.epoch is not None:
            dataset.set_epoch(self.epoch)
        yield from dataset


def test_a_dataset_that_is_made_in_a_worker_needs_set_epoch(root, epochs):
    message = refusal_of(loader_of(MadeInWorker(root)))
    assert re.search(r"made inside a worker.*Make it in the main process.*set_epoch", message)
    assert list(loader_of(MadeInWorker(root, 2))) == epochs[2]


def set_epoch_two(worker):
    get_worker_info().dataset.set_epoch(2)


def set_own_epoch(worker):
    get_worker_info().dataset.set_epoch(worker)


def test_an_epoch_set_in_all_workers_is_used_and_different_ones_are_refused(root, epochs):
    dataset = dataset_of(root)
    assert list(loader_of(dataset, worker_init_fn=set_epoch_two)) == epochs[2]
    assert list(loader_of(dataset)) == epochs[3]
    message = refusal_of(loader_of(dataset_of(root), worker_init_fn=set_own_epoch))
    assert re.search(r"placed differently.*sample 0 of epoch [01]\b.*sample 0 of epoch [01]\b", message)


def test_all_workers_of_all_epochs_read_the_version_that_was_opened_first(tmp_path):
    """The program does not open the set; workers of the second epoch find a newer version."""
    root = str(write_set(tmp_path / "root", SIZE))
    dataset = dataset_of(root)
    loader = loader_of(dataset)
    assert len(read_without_length(loader)) == 20
    write_set(root, 200, exist_ok=True)
    assert len(read_without_length(loader)) == 20
    assert (dataset.manifest.version, dataset.size) == (1, SIZE)


def test_a_plain_set_that_was_replaced_between_two_epochs_is_refused(tmp_path):
    root = tmp_path / "root"
    for number in range(2):
        write_set(root / str(number), 20)
    merge_index(str(root))
    loader = loader_of(dataset_of(str(root)))
    assert len(read_without_length(loader)) == 5
    write_set(root / "2", 20)
    merge_index(str(root))
    assert re.search("has read digest .* before, and finds", refusal_of(loader))
