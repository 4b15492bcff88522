"""LocalDataset with torch's own loader."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402 - after the skip

import smalti  # noqa: E402
from smalti.torch import LocalDataset  # noqa: E402
from tests.shard_sets import write_set  # noqa: E402

pytestmark = pytest.mark.torch


def test_it_is_a_map_style_dataset_under_its_public_name(tmp_path):
    assert smalti.LocalDataset is LocalDataset
    assert isinstance(LocalDataset(write_set(tmp_path, 3)), Dataset)


def test_batches_are_fetched_by_one_call(tmp_path):
    dataset = LocalDataset(write_set(tmp_path, 10))
    assert [sample["id"] for sample in dataset.__getitems__([3, 1])] == [3, 1]


class Doubled(LocalDataset):
    """Takes one number in `__getitem__`, as data sets of torch do."""

    def __getitem__(self, at):
        return 2 * super().__getitem__(at)["id"]


def test_a_subclass_gets_one_number_at_a_time(tmp_path):
    loader = DataLoader(Doubled(write_set(tmp_path, 5)), batch_size=3)
    assert [batch.tolist() for batch in loader] == [[0, 2, 4], [6, 8]]


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_torch_shuffles_and_collates_it(tmp_path, num_workers):
    dataset = LocalDataset(write_set(tmp_path, 30))
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=num_workers)
    batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == [8, 8, 8, 6]
    assert sorted(torch.cat([batch["id"] for batch in batches]).tolist()) == list(range(30))
    assert batches[0]["vector"].shape == (8, 3)
    first = int(batches[0]["id"][0])
    assert batches[0]["text"][0].startswith(f"sample {first} ")
