"""Logical types in samples, batches and mixtures, and values as stored with `logical=False`."""

import copy
import importlib
import pickle

import numpy as np
import pytest

from smalti.dataset import StreamingDataset
from smalti.dataset.local import LocalDataset
from smalti.errors import FormatError, SchemaError
from smalti.stream import OpenStreams, Stream, StreamOptions
from tests.shard_sets import write_set
from tests.typed_sets import COLUMNS, LOGICAL, plain, stored, wanted, write_typed_set


@pytest.fixture
def root(tmp_path):
    return write_typed_set(tmp_path / "set")


def test_samples_have_their_logical_types(root):
    dataset = StreamingDataset(remote=root)
    for number in range(40):
        assert plain(dataset[number]) == wanted(number)
        assert plain(LocalDataset(root)[number]) == wanted(number)
    assert type(dataset[1]["ok"]) is np.bool_
    assert dataset[1]["marks"].dtype == np.bool_


def test_batches_have_their_logical_types_in_numpys_own_types(root):
    batch = OpenStreams([StreamOptions(root)]).batch(np.array([39, 4, 5]))
    assert sorted(batch) == sorted(wanted(0))
    assert batch["when"].dtype == "M8[us]"
    assert batch["day"].tolist() == [wanted(each)["day"].item() for each in (39, 4, 5)]
    assert batch["ok"].tolist() == [True, False, True]
    assert batch["age"].tolist() == [None, 4, 5]
    assert batch["name"] == [None, "n4", "n5"]
    assert batch["box"].tolist() == [[None, None], [4, 0.5], [5, 0.5]]
    assert batch["info"] == [wanted(each)["info"] for each in (39, 4, 5)]
    assert [each.tolist() for each in batch["marks"]] == [wanted(each)["marks"] for each in (39, 4, 5)]


def test_logical_false_returns_values_as_stored(root):
    for dataset in (StreamingDataset(remote=root, logical=False), LocalDataset(root, logical=False)):
        assert plain(dataset[4]) == plain(stored(4))
    stream = OpenStreams([StreamOptions(root, logical=False)])
    assert stream.batch(np.array([4]))["when"].tolist() == [4_000_000]
    assert sorted(stream.batch(np.array([4]))) == sorted(COLUMNS)


def test_logical_types_survive_pickling(root):
    stream = OpenStreams([StreamOptions(root)])
    assert plain(pickle.loads(pickle.dumps(stream)).sample(7)) == wanted(7)


def test_an_epoch_has_logical_types(root):
    dataset = StreamingDataset(remote=root, batch_size=8, shuffle=True)
    found = {sample["id"]: plain(sample) for sample in dataset}
    assert found == {number: wanted(number) for number in range(40)}
    batches = list(StreamingDataset(remote=root, batch_size=8).batches())
    assert np.concatenate([batch["day"] for batch in batches]).tolist() == [wanted(each)["day"] for each in range(40)]


def test_a_transform_gets_logical_types(root):
    dataset = StreamingDataset(remote=root, transform=lambda sample: sample["day"].astype("M8[Y]"))
    assert dataset[3] == np.datetime64("1970")


def test_out_is_filled_with_stored_values(root):
    out = {"when": np.zeros(2, np.int64)}
    batch = OpenStreams([StreamOptions(root)]).batch(np.array([2, 1]), out=out)
    assert out["when"].tolist() == [2_000_000, 1_000_000]
    assert np.shares_memory(batch["when"], out["when"])


def test_a_batch_over_more_shards_than_may_be_open_is_the_same(root, monkeypatch):
    whole = OpenStreams([StreamOptions(root)]).batch(np.arange(40)[::-1])
    monkeypatch.setattr("smalti.cache.cache.ShardCache.max_open", 2)
    parts = OpenStreams([StreamOptions(root)]).batch(np.arange(40)[::-1])
    assert parts["age"].tolist() == whole["age"].tolist()
    assert parts["info"] == whole["info"]
    assert parts["day"].tolist() == whole["day"].tolist()


def test_streams_with_equal_logical_types_mix_in_one_batch(tmp_path):
    roots = [write_typed_set(tmp_path / str(first), 10, first=first) for first in (0, 30)]
    stream = OpenStreams([StreamOptions(root) for root in roots])
    assert stream.batch(np.array([1, 12]))["day"].tolist() == [wanted(1)["day"], wanted(32)["day"]]
    assert plain(stream.sample(12)) == wanted(32)


def test_streams_with_different_logical_types_are_read_by_sample_and_refused_in_one_batch(tmp_path):
    other = copy.deepcopy(LOGICAL) | {"day": {"type": "duration", "unit": "M"}}
    roots = [write_typed_set(tmp_path / "a", 10), write_typed_set(tmp_path / "b", 10, logical=other)]
    stream = OpenStreams([StreamOptions(root) for root in roots])
    assert stream.sample(1)["day"] == np.datetime64("1970-01-02")
    assert stream.sample(11)["day"] == np.timedelta64(1, "M")
    assert stream.batch(np.array([10, 11]))["day"].dtype == "m8[M]"
    assert stream.batch(np.array([1, 2]))["day"].dtype == "M8[D]"
    with pytest.raises(SchemaError, match="streams 0 and 1 have different logical types"):
        stream.batch(np.array([1, 11]))
    raw = OpenStreams([StreamOptions(root, logical=False) for root in roots])
    assert raw.batch(np.array([1, 11]))["day"].tolist() == [1, 1]


def test_a_loader_refuses_streams_with_different_logical_types_before_the_first_step(tmp_path):
    pytest.importorskip("torch")
    torch = importlib.import_module("smalti.torch")
    other = copy.deepcopy(LOGICAL) | {"day": {"type": "duration", "unit": "M"}}
    roots = [write_typed_set(tmp_path / "a", 10), write_typed_set(tmp_path / "b", 10, logical=other)]
    dataset = torch.StreamingDataset(streams=[Stream(remote=root) for root in roots], batch_size=8)
    with pytest.raises(SchemaError, match=r"different columns, .*'type': 'date'.*'type': 'duration'"):
        next(iter(torch.StreamingDataLoader(dataset)))


def test_a_set_without_logical_types_needs_no_conversion(tmp_path):
    stream = OpenStreams([StreamOptions(str(write_set(tmp_path / "set", 20)))])
    assert stream.sets[0].logical is None
    assert stream._types == [None]


def test_an_unknown_logical_type_is_refused_when_the_set_is_opened(tmp_path):
    root = write_typed_set(tmp_path / "set", logical={"day": {"type": "lunar"}})
    with pytest.raises(SchemaError, match=r"column 'day': .*'lunar'.*Update smalti"):
        OpenStreams([StreamOptions(root)])
    assert OpenStreams([StreamOptions(root, logical=False)]).sample(3)["day"] == 3


def test_a_value_outside_its_logical_type_is_reported_with_sample_and_version(tmp_path):
    bad = write_typed_set(
        tmp_path / "bad", logical={"ok": {"type": "bool"}, "info": {"type": "list", "of": {"type": "date"}}}
    )
    stream = OpenStreams([StreamOptions(bad)])
    for read in (lambda: stream.sample(17), lambda: stream.batch(np.array([17]))):
        with pytest.raises(
            FormatError, match=r"^sample 17 of .*bad, version digest [0-9a-f]{12}: column 'info': "
        ) as caught:
            read()
        assert caught.value.sample_id == 17
