"""The iterator over a dataset's samples: its state in one process; for torchdata's workers see tests/frameworks."""

import pytest
from torch.utils.data import DataLoader

from smalti.errors import CursorError
from smalti.torch import StreamingDataset
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("samples") / "root", 50))


@pytest.mark.parametrize(
    "damage", [{"given": -1}, {"given": "3"}, {"given": True}, {"start": None}, {"reader": []}, {"start": {}}]
)
def test_a_damaged_state_is_refused(root, damage):
    samples = iter(StreamingDataset(remote=root, batch_size=4))
    next(samples)
    with pytest.raises(CursorError, match="saved state"):
        samples.load_state_dict(samples.state_dict() | damage)


def test_resuming_does_not_read_samples_that_were_taken(root):
    class Logged(StreamingDataset):
        def __getitem__(self, at):
            read.append(at)
            return super().__getitem__(at)

    read = []
    samples = iter(StreamingDataset(remote=root, batch_size=4))
    for _ in range(40):
        next(samples)
    resumed = iter(Logged(remote=root, batch_size=4))
    resumed.load_state_dict(samples.state_dict())
    assert [sample["id"] for sample in resumed] == [*range(40, 50), 0, 1]
    assert read == [*range(40, 50), 0, 1]


def test_creating_an_iterator_begins_no_epoch(root):
    dataset = StreamingDataset(remote=root, batch_size=4)
    iter(dataset)
    assert dataset.next_epoch == 0
    DataLoader(dataset, batch_size=4).__iter__()
    assert dataset.next_epoch == 0
