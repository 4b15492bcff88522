"""A transform on batches gives the same samples however they are read: by batch, one by one, by id, in workers."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from smalti.errors import SchemaError
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch

COUNT = 40


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("set") / "root", COUNT))


class OnBatches:
    on_batches = thread_safe = True

    def __init__(self, change):
        self.change = change

    def __call__(self, columns):
        return self.change(columns)


def doubled(columns):
    """Return columns of several kinds, each of which can be computed from the id by hand."""
    return {
        "id": columns["id"],
        "twice": torch.from_numpy(columns["id"] * 2),
        "text": [text.upper() for text in columns["text"]],
        "pixels": np.stack([np.full((2, 2), number) for number in columns["id"].tolist()]),
        "tags": [["a"] * (number % 3) for number in columns["id"].tolist()],
    }


def expected(number):
    return {
        "id": number,
        "twice": 2 * number,
        "text": f"SAMPLE {number} " + "X" * (number % 7),
        "pixels": [[number] * 2] * 2,
        "tags": ["a"] * (number % 3),
    }


def plain(sample):
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}


def opened(root, change=doubled, kind=StreamingDataset, **options):
    return kind(remote=root, batch_size=8, transform=OnBatches(change), **options)


class Overriding(StreamingDataset):
    def __getitem__(self, at):
        return super().__getitem__(at)


@pytest.mark.parametrize("kind", [StreamingDataset, Overriding])
def test_samples_by_id_and_one_by_one_are_transformed(root, kind):
    dataset = opened(root, kind=kind)
    assert plain(dataset[7]) == expected(7)
    assert [plain(sample) for sample in dataset[3:6]] == [expected(number) for number in (3, 4, 5)]
    assert [plain(sample) for sample in dataset] == [expected(number) for number in range(COUNT)]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_torchs_own_loader_gives_what_the_streaming_loader_gives(root, workers):
    def found(batches):
        return [(batch["twice"].tolist(), batch["text"], batch["pixels"].tolist()) for batch in batches]

    drop = OnBatches(lambda columns: {name: doubled(columns)[name] for name in ("twice", "text", "pixels")})
    dataset = StreamingDataset(remote=root, batch_size=8, shuffle=True, transform=drop)
    batches = found(DataLoader(dataset, batch_size=8, num_workers=workers))
    assert batches == found(
        StreamingDataLoader(StreamingDataset(remote=root, batch_size=8, shuffle=True, transform=drop))
    )


def test_a_loader_with_a_collate_function_gets_transformed_samples(root):
    batches = list(StreamingDataLoader(opened(root), collate_fn=lambda samples: [plain(each) for each in samples]))
    assert batches == [[expected(number) for number in range(first, first + 8)] for first in range(0, COUNT, 8)]


def test_samples_one_by_one_are_the_rows_of_the_transformed_batches(root):
    """A transform that looks at its whole batch: each value minus the mean of the batch."""

    def centred(columns):
        return {"id": columns["id"], "x": columns["id"] - columns["id"].mean()}

    rows = [sample["x"] for sample in opened(root, centred, shuffle=True)]
    assert rows == [x for batch in opened(root, centred, shuffle=True).batches() for x in batch["x"].tolist()]
    assert opened(root, centred)[9]["x"] == 0  # a batch of one


def test_the_transform_sees_the_marks_of_samples_wherever_it_is_called(root):
    def of_marks(columns):
        return {"marks": list(zip(columns["_sample_id"].tolist(), columns["_position"].tolist(), strict=True))}

    dataset = opened(root, of_marks, include_ids=True)
    assert dataset[5] == {"marks": (5, -1)}
    assert [sample["marks"] for sample in dataset] == [(number, number) for number in range(COUNT)]
    assert "_sample_id" not in opened(root, dict, include_ids=True)[5]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda columns: columns["id"], "returned ndarray of shape"),
        (lambda columns: {"mean": columns["id"].mean()}, "the column 'mean' as float64 of shape"),
        (lambda columns: {"id": np.append(columns["id"], 1)}, "the column 'id' as ndarray of shape"),
        (lambda columns: {"id": columns["id"], "name": "a text"}, "the column 'name' as str"),
        (lambda columns: None, "returned NoneType"),
    ],
)
def test_a_transform_whose_result_cannot_be_split_is_refused_where_samples_are_read(root, returned, words):
    for read in (lambda dataset: dataset[0], lambda dataset: next(iter(dataset))):
        with pytest.raises(SchemaError, match=f"{words}.* Read whole batches"):
            read(opened(root, returned))
    assert len(list(opened(root, returned).batches())) == COUNT // 8  # a batch may be anything


def test_nulls_are_none_in_the_samples_of_a_batch(root):
    def masked(columns):
        return {"x": np.ma.MaskedArray(columns["id"], columns["id"] % 2 == 0)}

    assert [opened(root, masked)[number]["x"] for number in range(3)] == [None, 1, None]
