"""G1 and G13: a loader worker that is killed, or gets no memory, is one clear error; the next epoch is complete."""

import multiprocessing
import os
import re
import resource
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from smalti.cache import CacheOptions
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.writer import MDSWriter
from tests.faults.blocking_store import S3Server
from tests.shard_sets import write_set
from tests.torch.train.launch.test_processes import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.process]

COUNT = 101
STEPS = 13  # of 8 samples, the last one filled up with samples of the first


def ids(batches):
    return sorted({number for batch in batches for number in batch["id"].tolist()})


# ---------------------------------------------------------------------- G1


@pytest.fixture
def store(tmp_path):
    write_set(tmp_path / "set", COUNT)
    with S3Server(tmp_path) as server:
        yield server


def downloading(store):
    return [key for key in store.requested_keys if key.endswith(".mds")]


def kill_one_in_a_download(store):
    wait_until(lambda: downloading(store))
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    store.release.set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "persistent"), [(1, False), pytest.param(2, False, marks=pytest.mark.nightly), (2, True)]
)
def test_g1_a_worker_killed_in_a_download_is_one_error_and_the_next_epoch_is_complete(
    store, tmp_path, workers, persistent
):
    before = set(multiprocessing.active_children())
    dataset = StreamingDataset(
        remote="s3://b/set",
        cache=CacheOptions(local=str(tmp_path / "cache")),
        storage_options=store.options,
        shuffle=True,
    )
    loader = StreamingDataLoader(dataset, 8, num_workers=workers, worker_kind="process", persistent_workers=persistent)
    store.held = r"\.mds$"
    killing = threading.Thread(target=kill_one_in_a_download, args=(store,))
    killing.start()
    taken = []  # the other worker's batch may come before the death is known
    with pytest.raises(RuntimeError, match=r"worker \(pid \d+\) was killed by signal SIGKILL"):
        taken.extend(loader)
    killing.join(280)
    assert set(multiprocessing.active_children()) == before
    loader.load_state_dict(loader.state_dict())
    assert loader.state_dict()["epoch"] == 0
    rest = list(loader)
    assert len(taken) + len(rest) == STEPS
    assert ids(taken + rest) == ids(loader) == list(range(COUNT)), "that epoch, and the next one"
    assert loader.state_dict()["epoch"] == 2
    if persistent:
        loader._iterator._shutdown_workers()


# ---------------------------------------------------------------------- G13

HUGE = 1 << 40  # bytes; more than any machine of today gives to a process
BIG = 1 << 19  # bytes of a sample


class Greedy:
    """A transform that takes more memory than there is, while a file exists."""

    on_batches = True

    def __init__(self, tight):
        self.tight = tight

    def __call__(self, columns):
        if self.tight.exists():
            np.ones(HUGE, np.uint8)
        return columns


class Limited:
    """A `worker_init_fn` that limits the free address space of a worker, while a file exists."""

    def __init__(self, tight, room):
        self.tight, self.room = tight, room

    def __call__(self, worker):
        if self.tight.exists():
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + self.room, resource.RLIM_INFINITY))


@pytest.fixture(scope="module", params=[None, "zstd"])
def large(request, tmp_path_factory):
    """A set of samples of half a MiB."""
    root = tmp_path_factory.mktemp("large") / "root"
    options = {"columns": {"id": "int", "big": "bytes"}, "size_limit": 1 << 22, "compression": request.param}
    with MDSWriter(out=str(root), **options) as writer:
        for number in range(40):
            writer.write({"id": number, "big": bytes([number]) * BIG})
    return str(root)


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.parametrize("room", [1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26], ids=lambda room: f"{room >> 10}KiB")
def test_g13_a_worker_without_memory_is_an_error_that_names_memory_and_the_next_epoch_is_complete(
    large, tmp_path, room
):
    """The memory may end in mapping, fetching, unpacking, copying or the user's transform."""
    tight = tmp_path / "tight"
    tight.touch()
    dataset = StreamingDataset(
        remote=large, cache=CacheOptions(local=str(tmp_path / "cache")), shuffle=True, transform=Greedy(tight)
    )
    loader = StreamingDataLoader(
        dataset, 8, num_workers=1, worker_kind="process", worker_init_fn=Limited(tight, room), timeout=500
    )
    with pytest.raises((RuntimeError, MemoryError, OSError)) as caught:
        list(loader)
    assert re.search(r"(?i)memory", str(caught.value)), caught.value
    tight.unlink()
    assert ids(loader) == list(range(40))


class KilledForMemory:
    """A transform that kills its worker like the kernel's out-of-memory killer, while a file exists."""

    on_batches = True

    def __init__(self, tight):
        self.tight = tight

    def __call__(self, columns):
        if self.tight.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return columns


def test_g13_a_worker_that_the_kernel_killed_for_memory_is_an_error_that_names_memory(tmp_path):
    root, tight = str(write_set(tmp_path / "set", COUNT)), tmp_path / "tight"
    tight.touch()
    dataset = StreamingDataset(remote=root, shuffle=True, transform=KilledForMemory(tight))
    loader = StreamingDataLoader(dataset, 8, num_workers=2, worker_kind="process")
    with pytest.raises(RuntimeError, match=r"killed by signal SIGKILL.*memory: use fewer"):
        list(loader)
    tight.unlink()
    assert ids(loader) == list(range(COUNT))
