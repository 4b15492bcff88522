"""Threads and processes as a loader's workers: the same batches, errors and state from both."""

import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from smalti.cache import fetch
from smalti.errors import ChecksumMismatch, ShardNotFound, SharedDatasetWarning, SmaltiError
from smalti.format.reading.files import verify_file
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch

SIZE = 101
KINDS = ["thread", pytest.param("process", marks=pytest.mark.process)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("kinds") / "root", SIZE))


@pytest.fixture(autouse=True)
def no_threads_are_left():
    yield
    assert [thread for thread in threading.enumerate() if thread.name.startswith("smalti-loader")] == []


def loader_of(root, workers, kind="auto", *, batch=8, transform=None, dataset=StreamingDataset, **options):
    return StreamingDataLoader(
        dataset(remote=root, shuffle=True, transform=transform), batch, num_workers=workers, worker_kind=kind, **options
    )


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


class OnBatches:
    """A batch transform that may or may not be called by threads."""

    on_batches = True

    def __init__(self, change=lambda columns: columns, *, thread_safe=True):
        self.change, self.thread_safe = change, thread_safe

    def __call__(self, columns):
        return self.change(columns)


# ---------------------------------------------------------------------- the choice of a kind


class Overriding(StreamingDataset):
    def __getitem__(self, at):
        return super().__getitem__(at)


class OverridingGetItem(StreamingDataset):
    def get_item(self, sample_id):
        return super().get_item(sample_id)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "thread"),
        ({"transform": OnBatches()}, "thread"),
        ({"transform": OnBatches(thread_safe=False)}, "process"),
        ({"transform": lambda sample: sample}, "process"),
        ({"collate_fn": list}, "process"),
        ({"dataset": Overriding}, "process"),
        ({"dataset": OverridingGetItem}, "process"),
        ({"worker_init_fn": print}, "process"),
        ({"multiprocessing_context": "spawn"}, "process"),
        ({"persistent_workers": True, "prefetch_factor": 3}, "thread"),
        ({"kind": "process"}, "process"),
        ({"kind": "thread", "collate_fn": list}, "thread"),
    ],
)
def test_threads_are_chosen_if_only_the_librarys_code_runs_in_them(root, options, kind):
    assert loader_of(root, 2, **options).worker_kind == kind


def test_an_unknown_kind_is_refused(root):
    with pytest.raises(ValueError, match="`worker_kind` must be one of auto, thread, process, found 'fibre'"):
        loader_of(root, 2, "fibre")


@pytest.mark.parametrize("option", [{"worker_init_fn": print}, {"multiprocessing_context": "fork"}])
def test_options_of_processes_are_refused_for_threads(root, option):
    with pytest.raises(ValueError, match=f"`{next(iter(option))}` is for worker processes"):
        loader_of(root, 2, "thread", **option)


# ---------------------------------------------------------------------- the same batches


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_order_is_the_same_for_any_workers(root, kind, workers):
    alone = loader_of(root, 0)
    expected = [ids(alone), ids(alone)]
    loader = loader_of(root, workers, kind)
    assert [ids(loader), ids(loader)] == expected
    assert {number for batch in expected[0] for number in batch} == set(range(101))


@pytest.mark.parametrize("kind", KINDS)
def test_workers_deliver_values_unchanged(root, kind):
    for batch in loader_of(root, 2, kind):
        for number, text, vector in zip(batch["id"].tolist(), batch["text"], batch["vector"], strict=True):
            assert text == f"sample {number} " + "x" * (number % 7)
            assert vector.tolist() == [number, 0.5, -number]
        assert batch["vector"].dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_overridden_access_and_sample_transforms_are_called(root, kind):
    class Halved(StreamingDataset):
        def get_item(self, sample_id):
            return {"id": super().get_item(sample_id)["id"] / 2}

    plain = ids(loader_of(root, 0))
    assert ids(loader_of(root, 2, kind, dataset=Halved)) == [[n / 2 for n in batch] for batch in plain]
    twice = loader_of(root, 2, kind, transform=lambda sample: {"id": sample["id"] * 2})
    assert ids(twice) == [[n * 2 for n in batch] for batch in plain]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_transform_runs_in_the_workers(root, kind):
    negative = OnBatches(lambda columns: {"id": -columns["id"]})
    assert ids(loader_of(root, 2, kind, transform=negative)) == [
        [-n for n in batch] for batch in ids(loader_of(root, 0))
    ]


def test_threads_transform_concurrently_and_not_in_the_consumers_thread(root):
    names, together = set(), threading.Barrier(2, timeout=120)

    def meet(columns):
        together.wait()
        names.add(threading.current_thread().name)
        return columns

    assert len(ids(loader_of(root, 2, batch=13, transform=OnBatches(meet)))) == 8
    assert names == {"smalti-loader-0", "smalti-loader-1"}


@pytest.mark.parametrize("workers", [1, 2])
def test_two_loaders_over_one_dataset_run_side_by_side_with_a_warning(root, workers):
    dataset = StreamingDataset(remote=root, shuffle=True, batch_size=8)
    first, second = (StreamingDataLoader(dataset, num_workers=workers) for _ in range(2))
    alone = loader_of(root, 0)
    expected = [ids(alone), ids(alone)]
    with pytest.warns(SharedDatasetWarning, match="each loader gets every other epoch"):
        pairs = [(a["id"].tolist(), b["id"].tolist()) for a, b in zip(first, second, strict=True)]
    assert len(ids(second)) == len(expected[0]), "no loader is in the middle of an epoch: no warning"
    assert pairs == list(zip(*expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_consumers_random_numbers_do_not_depend_on_the_workers(root, kind):
    def draws(loader):
        torch.manual_seed(5)
        return [torch.rand(1).item() for _ in loader]

    assert draws(loader_of(root, 2, kind)) == draws(loader_of(root, 0))


# ---------------------------------------------------------------------- state


@pytest.mark.process
@pytest.mark.parametrize(("before", "after"), [("thread", "process"), ("process", "thread")])
@pytest.mark.parametrize("taken", [1, 6])
def test_a_state_from_one_kind_resumes_exactly_in_the_other(root, before, after, taken):
    whole = ids(loader_of(root, 0))
    loader = loader_of(root, 2, before, prefetch_factor=3)
    batches = iter(loader)
    prefix = [next(batches)["id"].tolist() for _ in range(taken)]
    state = json.loads(json.dumps(loader.state_dict()))
    batches.close()
    assert state["sample_in_epoch"] == taken * 8
    resumed = loader_of(root, 3, after)
    resumed.load_state_dict(state)
    assert prefix + ids(resumed) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_break_leaves_no_workers_and_the_next_epoch_is_complete(root, kind):
    alone = loader_of(root, 0)
    ids(alone)
    second = ids(alone)
    children = set(multiprocessing.active_children())
    loader = loader_of(root, 2, kind)
    for _ in loader:
        break
    assert [thread for thread in threading.enumerate() if thread.name.startswith("smalti-loader")] == []
    end = time.monotonic() + 60  # torch stops waiting after some seconds, and terminates them
    while set(multiprocessing.active_children()) != children and time.monotonic() < end:
        time.sleep(0.05)
    assert set(multiprocessing.active_children()) == children
    assert ids(loader) == second


# ---------------------------------------------------------------------- errors


class StrangeError(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_raised_at_its_batch_with_its_type_and_the_next_epoch_works(root, kind, tmp_path):
    third = ids(loader_of(root, 0))[2][0]
    healed = tmp_path / "healed"

    def fail(columns):
        if third in columns["id"].tolist() and not healed.exists():
            raise StrangeError("bad augmentation")
        return columns

    loader = loader_of(root, 2, kind, transform=OnBatches(fail))
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(StrangeError, match="bad augmentation"):
        next(batches)
    assert loader.state_dict()["sample_in_epoch"] == 16
    healed.touch()
    assert sum(len(batch) for batch in ids(loader)) == 104


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_missing_shard_is_an_error(tmp_path, kind, workers):
    root = write_set(tmp_path / "set", SIZE)
    next(Path(root).rglob("*.mds")).unlink()
    with pytest.raises(ShardNotFound, match="gone from the store"):
        ids(loader_of(str(root), workers, kind))


def test_a_batch_that_takes_longer_than_the_timeout_is_an_error(root):
    release = threading.Event()

    def hang(columns):
        assert release.wait(120)
        return columns

    batches = iter(loader_of(root, 1, timeout=0.1, transform=OnBatches(hang)))
    threading.Timer(3.0, release.set).start()
    with pytest.raises(SmaltiError, match=r"batch 0 of this iteration was not ready after 0\.1 s"):
        next(batches)


def test_without_a_timeout_a_thread_may_be_slow(root):
    def slowly(columns):
        time.sleep(0.02)
        return columns

    assert len(ids(loader_of(root, 2, transform=OnBatches(slowly)))) == 13


# ---------------------------------------------------------------------- inside other processes


def read_in_child(root, connection):
    connection.send(ids(loader_of(root, 2, "thread")))


@pytest.mark.process
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=[pytest.mark.slow, pytest.mark.nightly])])
def test_threads_work_in_a_child_process_while_the_parent_iterates(root, start):
    loader = loader_of(root, 2, "thread")
    batches = iter(loader)
    first = next(batches)["id"].tolist()
    context = multiprocessing.get_context(start)
    here, there = context.Pipe()
    child = context.Process(target=read_in_child, args=(root, there))
    child.start()
    assert here.poll(280)
    assert here.recv() == [first, *ids(batches)]
    child.join(280)
    assert child.exitcode == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_in_page_locked_memory_if_requested(root, kind):
    for batch in loader_of(root, 2, kind, pin_memory=True):
        assert batch["vector"].is_pinned()


# ---------------------------------------------------------------------- opened and verified once


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_and_its_dataset_open_the_set_once(root, workers):
    loader = loader_of(root, workers)
    next(iter(loader))
    assert loader.dataset.stream is loader.streaming_dataset.stream


@pytest.mark.process
def test_worker_processes_verify_a_shard_once_in_all_epochs(tmp_path, monkeypatch):
    verified = tmp_path / "verified"

    def verify_and_record(path, *args, **kwargs):
        with verified.open("a") as file:
            file.write(f"{path}\n")
        return verify_file(path, *args, **kwargs)

    monkeypatch.setattr(fetch, "verify_file", verify_and_record)  # forked workers inherit it
    loader = loader_of(str(write_set(tmp_path / "set", SIZE)), 2, "process")
    first = ids(loader)
    in_first_epoch = verified.read_text()
    loader.streaming_dataset.set_epoch(0)
    assert ids(loader) == first
    assert verified.read_text() == in_first_epoch != ""


def test_a_verified_file_that_is_changed_with_equal_size_and_time_is_noticed_in_the_next_epoch(tmp_path):
    root = write_set(tmp_path / "set", SIZE)
    loader = loader_of(str(root), 2, "process")
    ids(loader)
    for shard in Path(root).rglob("*.mds"):
        before, content = shard.stat(), bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ChecksumMismatch):
        ids(loader)
