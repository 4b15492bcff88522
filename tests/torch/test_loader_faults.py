"""Worker processes that die, interrupts, and concurrent iterations: the next epoch is always complete."""

import multiprocessing
import os
import pickle
import signal
import threading

import pytest

from smalti.errors import StoreNotFound
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.torch.worker_processes import check_workers_while_waiting, end_of_worker
from tests.shard_sets import write_set

pytestmark = [pytest.mark.torch, pytest.mark.process]

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("faults") / "root", 101))


def loader_of(root, *, workers=0, batch=8, **options):
    return StreamingDataLoader(StreamingDataset(remote=root, shuffle=True), batch, num_workers=workers, **options)


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


# ---------------------------------------------------------------------- errors of dead workers


def ended(how):
    process = FORK.Process(target=how)
    process.start()
    process.join(120)
    return process


def ends_later():
    threading.Event().wait(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


CUT_OFF = [
    EOFError(),
    ConnectionResetError(),
    ConnectionRefusedError(),
    FileNotFoundError("socket"),
    pickle.UnpicklingError(),
]


@pytest.mark.parametrize("error", CUT_OFF, ids=lambda error: type(error).__name__)
def test_an_error_of_a_killed_worker_names_the_worker_and_the_signal(error):
    dead, done = ended(ends_later), ended(int)
    found = end_of_worker(error, [done, dead])
    assert isinstance(found, RuntimeError)
    assert f"DataLoader worker (pid {dead.pid}) was killed by signal SIGKILL" in str(found)
    assert (found.pid, found.exitcode) == (dead.pid, -signal.SIGKILL)


def test_a_worker_that_dies_after_the_error_is_reported_too():
    dying = FORK.Process(target=ends_later)
    dying.start()
    assert dying.is_alive()
    assert end_of_worker(EOFError(), [dying]).exitcode == -signal.SIGKILL


def test_an_exit_status_is_reported():
    assert "exited with status 3" in str(end_of_worker(EOFError(), [ended(lambda: os._exit(3))]))


def test_other_errors_are_not_taken_for_a_workers_death():
    dead = ended(ends_later)
    assert end_of_worker(ValueError("no"), [dead]) is None
    assert end_of_worker(StoreNotFound("no such shard"), [dead]) is None
    assert end_of_worker(EOFError(), [ended(int)]) is None
    assert end_of_worker(EOFError(), []) is None


# ---------------------------------------------------------------------- persistent workers


def test_persistent_workers_that_an_interrupt_ended_between_epochs_are_replaced(root):
    alone = loader_of(root)
    loader = loader_of(root, workers=2, worker_kind="process", persistent_workers=True)
    assert ids(loader) == ids(alone)
    for worker in loader._iterator._workers:
        for _ in range(20):  # Python ignores an interrupt during a finalizer: interrupt again
            os.kill(worker.pid, signal.SIGINT)  # as a terminal does, which asks every process of the foreground
            worker.join(1)
            if worker.exitcode is not None:
                break
        assert worker.exitcode == 0
    assert ids(loader) == ids(alone)
    loader._iterator._shutdown_workers()


def read_on_after_killing(worker, batches):
    os.kill(worker.pid, signal.SIGKILL)  # torch may raise at once, whatever the main thread is doing then
    return list(batches)


def test_a_persistent_worker_that_dies_within_an_epoch_fails_that_epoch_alone(root):
    loader = loader_of(root, workers=2, batch=2, worker_kind="process", persistent_workers=True, prefetch_factor=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match=r"(?i)worker.*(exited|killed)"):
        read_on_after_killing(loader._iterator._workers[0], batches)
    assert sum(map(len, ids(loader))) == 102
    loader._iterator._shutdown_workers()


def test_an_interrupt_of_the_consumer_ends_its_workers_and_the_next_epoch_is_complete(root):
    before = set(multiprocessing.active_children())
    loader = loader_of(root, workers=2, worker_kind="process", persistent_workers=True)
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        batches.throw(KeyboardInterrupt())
    assert set(multiprocessing.active_children()) == before
    assert sum(map(len, ids(loader))) == 104
    loader._iterator._shutdown_workers()


# ---------------------------------------------------------------------- concurrent iterations


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "worker_kind": "process"}])
def test_two_iterations_of_one_loader_are_two_complete_epochs(root, options):
    alone = loader_of(root)
    expected = [ids(alone), ids(alone)]
    loader = loader_of(root, **options)
    one, other = zip(*zip(loader, loader, strict=True), strict=True)
    assert [ids(one), ids(other)] == expected


def test_the_state_is_that_of_the_iteration_whose_batch_was_taken_last(root):
    loader = loader_of(root)
    one, other = iter(loader), iter(loader)
    next(one), next(other), next(one)
    assert (loader.state_dict()["epoch"], loader.state_dict()["sample_in_epoch"]) == (0, 16)
    next(other)
    assert (loader.state_dict()["epoch"], loader.state_dict()["sample_in_epoch"]) == (1, 16)


class WaitingIterator:
    """The part of torch's iterator that waits for a batch: checks for dead workers when a wait is over."""

    def __init__(self, dies_after):
        self.waits, self.dies_after = [], dies_after

    def _try_get_data(self, timeout):
        self.waits.append(timeout)
        if len(self.waits) == self.dies_after:
            raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly")
        return False, None


def test_a_dead_worker_is_noticed_within_five_seconds_without_a_signal():
    iterator = WaitingIterator(dies_after=3)
    check_workers_while_waiting(iterator)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        iterator._try_get_data(600.0)
    assert iterator.waits == [5.0, 5.0, 5.0]


def test_a_wait_for_a_batch_ends_at_the_loaders_time_limit():
    iterator = WaitingIterator(dies_after=0)
    check_workers_while_waiting(iterator)
    assert iterator._try_get_data(12.0) == (False, None)
    assert iterator.waits == [5.0, 5.0, 2.0]
