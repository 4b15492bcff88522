"""Batches of a loader with columns of times, truth values and nulls."""

import numpy as np
import pytest
import torch

from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.torch.collate import columns_to_tensors
from tests.typed_sets import wanted, write_typed_set

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_typed_set(tmp_path_factory.mktemp("typed") / "root")


def check(batches):
    """Check that all forty samples are there in order, as tensors if torch has a type for them."""
    found = {name: [value for batch in batches for value in batch[name]] for name in batches[0]}
    rows = [wanted(number) for number in range(40)]
    assert [batch["when"].dtype for batch in batches] == [torch.int64] * len(batches)
    assert torch.stack(found["when"]).tolist() == [1_000_000 * number for number in range(40)]
    assert torch.stack(found["day"]).tolist() == list(range(40))
    assert torch.stack(found["ok"]).dtype == torch.bool
    assert torch.stack(found["ok"]).tolist() == [row["ok"] for row in rows]
    assert torch.stack(found["age__is_null"]).dtype == torch.bool
    assert torch.stack(found["age__is_null"]).tolist() == [row["age"] is None for row in rows]
    assert torch.stack(found["age"]).tolist() == [row["age"] or 0 for row in rows]
    assert torch.stack(found["box"]).tolist() == [row["box"] or [0, 0] for row in rows]
    assert torch.stack(found["box__is_null"]).tolist() == [row["box"] is None for row in rows]
    assert torch.stack(found["marks"]).tolist() == [row["marks"] for row in rows]
    assert found["name"] == [row["name"] for row in rows]
    assert found["info"] == [row["info"] for row in rows]
    assert found["price"] == [row["price"] for row in rows]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_by_column(root, workers):
    check(list(StreamingDataLoader(StreamingDataset(remote=root), batch_size=8, num_workers=workers)))


@pytest.mark.slow
def test_batches_from_worker_processes(root):
    loader = StreamingDataLoader(StreamingDataset(remote=root), batch_size=8, num_workers=2, worker_kind="process")
    check(list(loader))


def test_samples_become_tensors_too(root):
    """With a transform of samples, they are collated like by torch's own `default_collate`."""
    keep = ("id", "when", "day", "ok")
    dataset = StreamingDataset(remote=root, transform=lambda sample: {name: sample[name] for name in keep})
    batches = list(StreamingDataLoader(dataset, batch_size=8, worker_kind="thread"))
    assert torch.cat([batch["when"] for batch in batches]).tolist() == [1_000_000 * number for number in range(40)]
    assert torch.cat([batch["day"] for batch in batches]).dtype == torch.int64
    assert torch.cat([batch["ok"] for batch in batches]).dtype == torch.bool


def test_stored_values_are_delivered_unchanged(root):
    batch = next(iter(StreamingDataLoader(StreamingDataset(remote=root, logical=False), batch_size=4)))
    assert batch["day"].tolist() == [0, 1, 2, 3]
    assert batch["ok"].tolist() == [0, 1, 0, 1]
    assert batch["age__is_null"].tolist() == [1, 0, 0, 1]


def test_times_and_masked_arrays_share_their_memory_with_the_tensors():
    day, age = np.array([1, 2], "M8[D]"), np.ma.MaskedArray(np.array([5, 0]), [False, True])
    found = columns_to_tensors({"day": day, "age": age, "span": [np.array([3], "m8[us]")] * 2})
    day[0], age.data[0] = np.datetime64(9, "D"), 7
    assert found["day"].tolist() == [9, 2]
    assert found["age"].tolist() == [7, 0]
    assert found["age__is_null"].tolist() == [False, True]
    assert found["span"].tolist() == [[3], [3]]
