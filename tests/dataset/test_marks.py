"""`include_ids=True` adds columns and overwrites none."""

import pytest

from smalti.compat.petastorm import make_batch_reader
from smalti.dataset import StreamingDataset
from smalti.errors import SchemaError
from smalti.writer import MDSWriter
from tests.compat.parquet_files import url, write_rows
from tests.shard_sets import write_set

MARKS = ["_sample_id", "_position", "_stream"]


@pytest.mark.parametrize("name", MARKS)
def test_a_column_with_the_name_of_a_mark_is_refused_before_the_first_step(tmp_path, name):
    with MDSWriter(out=str(tmp_path / "set"), columns={"id": "int", name: "int"}) as writer:
        for number in range(4):
            writer.write({"id": number, name: 100 + number})
    dataset = StreamingDataset(remote=str(tmp_path / "set"), batch_size=2, include_ids=True)
    says = rf"stream 0 \(.*set\) has a column '{name}', and `include_ids=True` adds .*another name"
    for read in (dataset.batches, lambda: next(iter(dataset))):
        with pytest.raises(SchemaError, match=says) as caught:
            read()
        assert caught.value.column == name
    assert dataset.next_epoch == 0
    without = StreamingDataset(remote=str(tmp_path / "set"), batch_size=4)
    assert [batch[name].tolist() for batch in without.batches()] == [[100, 101, 102, 103]]


@pytest.mark.parametrize("name", MARKS[:2])
def test_a_field_that_a_transform_adds_under_that_name_is_refused(tmp_path, name):
    root = str(write_set(tmp_path / "set", 4))
    dataset = StreamingDataset(
        remote=root, batch_size=2, include_ids=True, transform=lambda sample: {name: sample["id"]}
    )
    with pytest.raises(SchemaError, match=rf"sample 0 has a field '{name}' after its transform.*another name"):
        next(iter(dataset))


def test_samples_that_a_subclass_keeps_are_not_marked_in_place(tmp_path):
    """A repeat, or the next epoch, gets the same object again."""
    kept = {}

    class Keeping(StreamingDataset):
        def get_item(self, sample_id):
            return kept.setdefault(sample_id, {"id": sample_id})

    dataset = Keeping(remote=str(write_set(tmp_path / "set", 3)), batch_size=2, include_ids=True)
    marked = [{"id": 0, "_sample_id": 0, "_position": 0}, {"id": 1, "_sample_id": 1, "_position": 1}]
    assert [list(dataset)[:2], list(dataset)[:2]] == [marked, marked]
    assert kept == {0: {"id": 0}, 1: {"id": 1}, 2: {"id": 2}}


def test_a_parquet_column_with_the_name_of_a_mark_is_refused(tmp_path):
    write_rows(tmp_path, _position=lambda row: row)
    with pytest.raises(SchemaError, match="has a column '_position', and `include_ids=True` would overwrite it"):
        make_batch_reader(url(tmp_path), include_ids=True)
