"""The ring in which worker processes deliver batches: the delivered values, and the reuse of memory."""

import gc
import multiprocessing
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.torch.shared_memory import SLOT_BYTES, Ring, pack
from tests.shard_sets import write_set

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no ring")]


@pytest.fixture
def ring():
    return Ring.create(2, 3)


def sent(batch, ring, worker=0):
    """Return the batch as the consumer receives it, and the number of pickled bytes."""
    data = pickle.dumps(pack(batch, ring, worker))
    return pickle.loads(data), len(data)


def slots_free(ring, worker=0):
    taken = []
    while (slot := ring.take(worker)) is not None:
        taken.append(slot)
    for slot in taken:
        ring.lease(slot)  # and give it back at once
    return len(taken)


# ---------------------------------------------------------------------- delivered values

TENSORS = {
    "int64": torch.arange(100),
    "uint8": torch.arange(4096, dtype=torch.int64).to(torch.uint8).reshape(64, 8, 8),
    "bool": torch.arange(999) % 3 == 0,
    "bfloat16": torch.arange(300, dtype=torch.bfloat16),
    "complex64": torch.complex(torch.arange(50.0), -torch.arange(50.0)),
    "small": torch.tensor([1.5]),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "transposed": torch.arange(400).reshape(20, 20).T,
    "channels last": torch.arange(960.0).reshape(2, 3, 8, 20).to(memory_format=torch.channels_last),
    "conjugated": torch.complex(torch.arange(50.0), torch.ones(50)).conj(),
    "strided": torch.arange(1000)[::3],
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_is_delivered_unchanged(ring, name):
    tensor = TENSORS[name]
    found = sent({"column": tensor}, ring)[0]["column"]
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    assert found.stride() == tensor.stride()
    assert torch.equal(found.resolve_conj(), tensor.resolve_conj())


def test_values_other_than_plain_tensors_are_pickled(ring):
    batch = {"text": ["a", "b"], "none": None, "number": 3, "array": np.arange(3), "mixed": [b"x" * 300, "y"]}
    batch["parameter"] = torch.nn.Parameter(torch.ones(100))
    found, _ = sent(batch, ring)
    assert found["text"] == ["a", "b"]
    assert (found["none"], found["number"], found["mixed"]) == (None, 3, [b"x" * 300, "y"])
    assert found["array"].tolist() == [0, 1, 2]
    assert type(found["parameter"]) is torch.nn.Parameter
    assert found["parameter"].requires_grad


def test_bytes_of_all_lengths_are_delivered_in_order(ring):
    values = [b"", b"first", b"x" * 100_000, b"", bytes(range(256)), b""]
    found, size = sent({"image": values}, ring)
    assert found["image"] == values
    assert size < 2000


def test_nested_containers_keep_their_kind(ring):
    ones, twos = torch.ones(100), torch.full((100,), 2)
    found, size = sent([{"a": (ones, [twos, "x"])}, [b"y" * 500], ()], ring)
    assert type(found[0]["a"]) is tuple
    assert torch.equal(found[0]["a"][0], ones)
    assert torch.equal(found[0]["a"][1][0], twos)
    assert (found[0]["a"][1][1], found[1], found[2]) == ("x", [b"y" * 500], ())
    assert size < 2000


def test_large_tensors_are_not_in_the_pickle(ring):
    batch = {"a": torch.zeros(1_000_000), "b": torch.ones(10, 1000, dtype=torch.int32)}
    found, size = sent(batch, ring)
    assert size < 1000
    assert torch.equal(found["a"], batch["a"])
    assert torch.equal(found["b"], batch["b"])


def test_values_that_do_not_fit_into_a_slot_are_pickled(ring):
    batch = {"large": torch.zeros(SLOT_BYTES // 4 + 1), "small": torch.ones(100)}
    packed = pack(batch, ring, 0)
    skeleton = packed.__reduce__()[1][2]
    assert skeleton["large"] is batch["large"]
    assert skeleton["small"] is not batch["small"]


def test_a_batch_can_be_written_to_by_its_consumer(ring):
    found, _ = sent({"a": torch.zeros(1000)}, ring)
    found["a"] += 1
    assert found["a"].sum() == 1000


# ---------------------------------------------------------------------- reuse of memory


def test_a_slot_is_free_again_when_its_batch_is_gone(ring):
    found, _ = sent({"a": torch.zeros(1000), "b": torch.zeros(1000)}, ring)
    assert slots_free(ring) == 2
    del found["a"]
    assert slots_free(ring) == 2
    del found
    assert slots_free(ring) == 3


@pytest.mark.parametrize(
    "kept",
    [lambda t: t[3:5], lambda t: t.view(-1)[7], lambda t: t.numpy(), lambda t: memoryview(t.numpy()), lambda t: t.data],
    ids=["slice", "element", "array", "memory", "data"],
)
def test_any_view_of_a_batch_keeps_its_slot(ring, kept):
    found, _ = sent({"a": torch.full((100, 10), 5)}, ring)
    view = kept(found.pop("a"))
    assert slots_free(ring) == 2
    for _ in range(4):
        sent({"a": torch.zeros(100, 10)}, ring)
    seen = view.numpy() if isinstance(view, torch.Tensor) else np.asarray(view)
    assert seen.min() == seen.max() == 5
    del view, seen
    assert slots_free(ring) == 3


def test_bytes_do_not_keep_a_slot(ring):
    found, _ = sent({"image": [b"x" * 1000]}, ring)
    assert slots_free(ring) == 3
    assert found["image"] == [b"x" * 1000]


def test_without_a_free_slot_a_batch_is_pickled(ring):
    kept = [sent({"a": torch.full((100,), n)}, ring)[0] for n in range(3)]
    batch = {"a": torch.full((100,), 3)}
    assert pack(batch, ring, 0) is batch
    assert [int(b["a"][99]) for b in kept] == [0, 1, 2]


def test_a_batch_that_cannot_be_packed_frees_its_slot(ring):
    endless = [torch.zeros(100)]
    endless.append(endless)
    for _ in range(4):
        with pytest.raises(RecursionError):
            pack(endless, ring, 0)
    assert slots_free(ring) == 3


def test_each_worker_has_slots_of_its_own(ring):
    kept = [sent({"a": torch.full((100,), n)}, ring, worker=n % 2)[0] for n in range(6)]
    assert [int(b["a"][0]) for b in kept] == [0, 1, 2, 3, 4, 5]
    assert slots_free(ring, 0) == slots_free(ring, 1) == 0


def drop(batch, connection):
    batch.clear()
    gc.collect()
    connection.send("forgotten")


@pytest.mark.process
def test_a_slot_that_a_fork_can_see_is_never_used_again(ring):
    """The slot is freed neither when the fork drops the batch nor when its parent does."""
    found, _ = sent({"a": torch.zeros(1000)}, ring)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=drop, args=(found, there))
    child.start()
    assert here.poll(120)
    assert here.recv() == "forgotten"
    child.join(120)
    assert slots_free(ring) == 2
    del found
    assert slots_free(ring) == 2


def test_the_memory_is_unnamed_and_freed_after_its_last_use():
    def maps():
        return Path("/proc/self/maps").read_text().count("smalti-ring")

    before, mapped = set(Path("/dev/shm").iterdir()), maps()
    ring = Ring.create(1, 2)
    found, _ = sent({"a": torch.zeros(1000)}, ring)
    assert set(Path("/dev/shm").iterdir()) <= before
    assert maps() == mapped + 1
    del ring
    assert found["a"].sum() == 0
    del found
    assert maps() == mapped


# ---------------------------------------------------------------------- through a loader


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("ring") / "root", 300))


def keep_batches(root, **options):
    loader = StreamingDataLoader(StreamingDataset(remote=root), 30, num_workers=2, worker_kind="process", **options)
    first = list(loader)
    return loader, first


@pytest.mark.process
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_that_the_consumer_keeps_do_not_change(root, persistent):
    loader, kept = keep_batches(root, persistent_workers=persistent, prefetch_factor=1)
    for _ in range(2):
        for batch in loader:
            batch["vector"].fill_(-1)
    assert [int(n) for batch in kept for n in batch["id"]] == list(range(300))
    assert [float(row[0]) for batch in kept for row in batch["vector"]] == list(range(300))


@pytest.mark.process
@pytest.mark.slow
def test_a_ring_worn_by_forks_between_epochs_is_replaced(root):
    loader, kept = keep_batches(root, persistent_workers=True, prefetch_factor=1)
    for epoch in range(3):
        assert not any(batch["vector"].is_shared() for batch in kept), f"epoch {epoch} came through torch's own sharing"
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()  # it sees every batch that is kept
        child.join(120)
        kept = list(loader)
    assert [int(n) for batch in kept for n in batch["id"]] == list(range(300))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("start", [pytest.param("spawn", marks=pytest.mark.nightly), "forkserver"])
def test_spawned_workers_share_the_ring(root, start):
    loader = StreamingDataLoader(
        StreamingDataset(remote=root), 30, num_workers=2, worker_kind="process", multiprocessing_context=start
    )
    batches = iter(loader)
    batch = next(batches)
    assert batch["vector"].data_ptr() > 0
    assert not batch["vector"].is_shared(), "it came through torch's own sharing"
    assert [batch["id"].tolist(), *(b["id"].tolist() for b in batches)] == [
        list(range(first, first + 30)) for first in range(0, 300, 30)
    ]
