"""G4 and G7: workers start with every method, whatever the dataset did in this process before."""

import gc
import multiprocessing
import os
import threading

import pytest
import torch

from smalti.cache import CacheOptions
from smalti.process import PerProcess
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.faults.blocking_store import S3Server
from tests.shard_sets import write_set
from tests.storage.test_process import in_fork

pytestmark = [pytest.mark.torch, pytest.mark.process]

COUNT = 96
STEPS = 12
DEADLINE = 280.0
EVERY = [
    pytest.param("fork", id="fork"),
    pytest.param("spawn", id="spawn", marks=[pytest.mark.slow, pytest.mark.nightly]),
    pytest.param("forkserver", id="forkserver", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("starts") / "root", COUNT, compression="zstd"))


def workers(start):
    return {"num_workers": 2, "worker_kind": "process", "multiprocessing_context": start, "timeout": DEADLINE}


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.parametrize("start", EVERY)
def test_g4_a_dataset_that_was_iterated_here_is_read_on_by_workers(root, tmp_path, start):
    """MosaicML's library hangs here. The expected epochs are those of a dataset without workers."""
    alone = StreamingDataLoader(
        StreamingDataset(remote=root, cache=CacheOptions(local=str(tmp_path / "alone")), shuffle=True), 8
    )
    expected = [ids(alone) for _ in range(3)]
    dataset = StreamingDataset(
        remote=root, cache=CacheOptions(local=str(tmp_path / "cache")), shuffle=True, batch_size=8
    )
    assert [sample["id"] for sample in dataset] == [number for batch in expected[0] for number in batch]
    begun = iter(dataset)  # epoch 1 is begun here, and left
    next(begun)
    assert ids(StreamingDataLoader(dataset, **workers(start))) == expected[2]
    assert [next(begun)["id"] for _ in range(10)] == [number for batch in expected[1] for number in batch][1:11]


@pytest.mark.filterwarnings("ignore::smalti.errors.SharedDatasetWarning")  # that is what it is about
@pytest.mark.parametrize("start", EVERY)
def test_g7_workers_begin_while_threads_of_the_same_dataset_fetch_and_read_here(tmp_path, start):
    """Those threads hold locks and a connection, which a fork copies in their current state."""
    write_set(tmp_path / "set", COUNT)
    with S3Server(tmp_path) as store:
        dataset = StreamingDataset(
            remote="s3://b/set",
            cache=CacheOptions(local=str(tmp_path / "cache")),
            storage_options=store.options,
            shuffle=True,
        )
        assert dataset[0]["id"] == 0
        store.held = r"\.mds$"
        dataset.stream.prefetch(torch.arange(COUNT).numpy())  # its threads are in the middle of it from now on
        batches = iter(StreamingDataLoader(dataset, 8, **workers(start)))
        threads = iter(StreamingDataLoader(dataset, 8, num_workers=2, worker_kind="thread", timeout=DEADLINE))
        store.release.set()
        mixed = list(zip(batches, threads, strict=True))
    assert len(mixed) == STEPS
    for side in (0, 1):
        assert sorted(number for pair in mixed for number in pair[side]["id"].tolist()) == list(range(COUNT))


def read_all(dataset, answers):
    answers.send(sorted(sample["id"] for sample in dataset))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_g7_a_dataset_that_is_in_use_can_be_sent_to_any_process(root, tmp_path, start):
    dataset = StreamingDataset(
        remote=root, cache=CacheOptions(local=str(tmp_path / "cache")), shuffle=True, batch_size=8
    )
    begun = iter(dataset)
    next(begun)
    context = multiprocessing.get_context(start)
    here, there = context.Pipe()
    process = context.Process(target=read_all, args=(dataset, there))
    process.start()
    assert here.poll(DEADLINE)
    assert here.recv() == list(range(COUNT))
    process.join(DEADLINE)
    assert process.exitcode == 0
    assert len(list(begun)) == COUNT - 1


def test_g7_nothing_is_started_or_opened_before_the_first_use(root, tmp_path):
    """Most programs build a dataset before they fork; it must not have threads then."""
    before = set(threading.enumerate())
    loader = StreamingDataLoader(
        StreamingDataset(remote=root, cache=CacheOptions(local=str(tmp_path / "cache"))), 8, num_workers=2
    )
    assert set(threading.enumerate()) <= before  # threads of earlier tests may end
    assert not (tmp_path / "cache").exists()
    assert len(ids(loader)) == STEPS


@pytest.mark.slow
def test_g7_a_fork_that_opens_its_own_connection_does_not_close_that_of_its_parent():
    """It would close it in an event loop of the parent, with a traceback in every worker that reads `s3://`."""
    closed = []
    gc.collect()
    gc.freeze()  # or the child would look through, and so copy, all that other tests have left in memory

    class Connection:
        def __del__(self):
            closed.append(os.getpid())

    values = [PerProcess(Connection)]
    values[0].get()

    def in_child():
        values[0].get()
        gc.collect()
        return closed

    assert in_fork(in_child) == "[]"
    values.clear()
    gc.collect()
    assert closed == [os.getpid()]
