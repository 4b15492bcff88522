"""`columns=[...]`: only these are read, in this order, by every way of reading; the order of samples stays the same."""

import io
import json
import pickle

import numpy as np
import pytest
from PIL import Image

from smalti import add_columns
from smalti.cache import CacheOptions
from smalti.dataset import StreamingDataset, open_dataset
from smalti.dataset.local import LocalDataset
from smalti.errors import FormatError, SchemaError
from smalti.images import DecodeImages
from smalti.stream import Stream
from smalti.writer import MDSWriter
from tests.bad_sets import write_bad_set
from tests.faults.cached_sets import remote_set
from tests.shard_sets import sample, write_set
from tests.text_writers import CSVWriter, JSONWriter
from tests.typed_sets import plain, wanted, write_typed_set

COUNT = 60
CHOICES = [["text"], ["vector", "id"], ["id", "text", "vector"]]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("set") / "root", COUNT))


@pytest.fixture(scope="module")
def text_roots(tmp_path_factory):
    """The same rows as JSONL and as CSV."""
    folder = tmp_path_factory.mktemp("text")
    for kind, name in ((JSONWriter, "json"), (CSVWriter, "csv")):
        with kind(out=str(folder / name), columns={"id": "int", "text": "str", "x": "float"}, size_limit=300) as writer:
            for number in range(COUNT):
                writer.write({"id": number, "text": f"line {number}", "x": number / 2})
    return folder


def part(values, names):
    """Return these columns of a sample, with lists for arrays so that they can be compared."""
    return {name: np.asarray(values[name]).tolist() for name in names}


@pytest.mark.parametrize("names", CHOICES, ids="-".join)
def test_samples_and_batches_have_these_columns_in_this_order_with_the_same_values(root, names):
    for dataset in (open_dataset(root, columns=names), LocalDataset(root, columns=tuple(names))):
        for number in (0, 31, COUNT - 1):
            assert list(dataset[number]) == names
            assert part(dataset[number], names) == part(sample(number), names)
    chosen, whole = (
        StreamingDataset(remote=root, batch_size=8, shuffle=True, columns=columns) for columns in (names, None)
    )
    for batch, all_columns in zip(chosen.batches(), whole.batches(), strict=True):
        assert list(batch) == names
        assert part(batch, names) == part(all_columns, names)
    chosen, whole = (
        StreamingDataset(remote=root, batch_size=8, shuffle=True, columns=columns) for columns in (names, None)
    )
    assert [part(each, names) for each in chosen] == [part(each, names) for each in whole]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_lines_of_text_give_these_columns(text_roots, kind):
    dataset = StreamingDataset(remote=str(text_roots / kind), columns=["x", "id"], batch_size=COUNT)
    assert list(dataset[7].items()) == [("x", 3.5), ("id", 7)]
    batch = next(dataset.batches())
    assert list(batch) == ["x", "id"]
    assert batch["x"].tolist() == [number / 2 for number in range(COUNT)]
    assert dataset.stream.cache.shard(0).gather(np.array([1]))["id"].tolist() == [1]


def test_columns_with_nulls_and_logical_types_come_without_their_marks(tmp_path):
    root = write_typed_set(tmp_path / "set")
    for names in (["age"], ["name", "day", "box"]):
        dataset = open_dataset(root, columns=names)
        for number in (4, 39):
            assert list(dataset[number]) == names
            assert plain(dataset[number]) == {name: wanted(number)[name] for name in names}
    assert list(open_dataset(root, columns=["age", "age__is_null"], logical=False)[0]) == ["age", "age__is_null"]
    with pytest.raises(SchemaError, match=r"names 'age__is_null', which .* does not have\. Its columns are age, box"):
        open_dataset(root, columns=["age__is_null"])


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        (
            ["txt"],
            SchemaError,
            "names 'txt', which .* does not have. Its columns are id, text, vector; did you mean 'text'",
        ),
        (["id", "zzzzzz"], SchemaError, r"(?m)names 'zzzzzz'.*id, text, vector\.$"),
        ([], ValueError, "at least one column, found none; leave it out"),
        ("text", TypeError, r"found the text 'text'; write \['text'\]"),
        (["id", "id"], ValueError, "names 'id' twice"),
        ([1], TypeError, "must be a list of names"),
        ({"id"}, TypeError, "must be a list of names"),
    ],
)
def test_names_that_cannot_be_read_are_refused_with_what_there_is(root, columns, error, words):
    for make in (open_dataset, LocalDataset):
        with pytest.raises(error, match=words):
            make(root, columns=columns)
    if error is not SchemaError:
        with pytest.raises(error, match=words):
            Stream(remote=root, columns=columns)


def test_a_state_continues_with_other_columns_in_the_same_order(root):
    def dataset(columns):
        return StreamingDataset(remote=root, batch_size=8, shuffle=True, columns=columns, include_ids=True)

    whole = [batch["_sample_id"].tolist() for batch in dataset(None).batches()]
    state = dataset(["text"]).state_dict(24)
    rest = dataset(["vector"])
    rest.load_state_dict(state)
    assert [batch["_sample_id"].tolist() for batch in rest.batches()] == whole[3:]
    assert state == dataset(None).state_dict(24)


def test_a_column_that_is_not_read_is_not_decoded(tmp_path):
    root = write_bad_set(tmp_path / "set", 20, {5})
    dataset = StreamingDataset(remote=root, batch_size=20, columns=["id"])
    assert dataset[5] == {"id": 5}
    assert next(dataset.batches())["id"].tolist() == list(range(20))
    with pytest.raises(FormatError, match="column 'meta'"):
        open_dataset(root, columns=["meta"])[5]


def test_a_pickled_column_that_is_not_read_needs_no_permission(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"id": "int", "any": "pkl"}, allow_unsafe_types=True) as writer:
        writer.write({"id": 3, "any": {"x": 1}})
    root = str(tmp_path / "set")
    assert open_dataset(root, columns=["id"])[0] == {"id": 3}
    with pytest.raises(SchemaError, match="allow_unsafe_types"):
        open_dataset(root, columns=["any"])


def test_a_shard_without_one_of_the_columns_is_named(tmp_path):
    for name, columns in (("a", {"id": "int", "x": "int"}), ("b", {"id": "int"})):
        with MDSWriter(out=str(tmp_path / name), columns=columns) as writer:
            writer.write(dict.fromkeys(columns, 1))
    first, second = (json.loads((tmp_path / name / "index.json").read_text())["shards"] for name in ("a", "b"))
    for name, shards in (("a", first), ("b", second)):
        for shard in shards:
            shard["raw_data"]["basename"] = f"{name}/{shard['raw_data']['basename']}"
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": first + second}))
    dataset = StreamingDataset(remote=str(tmp_path), columns=["id"], batch_size=2)
    assert next(dataset.batches())["id"].tolist() == [1, 1]
    with pytest.raises(SchemaError, match=r"^b/.*has no column 'x', which other shards of the set have"):
        open_dataset(str(tmp_path), columns=["x"])


# ---------------------------------------------------------------------- added columns


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """A remote set, to which two columns and then another were added, each in shards of its own."""
    remote = remote_set(tmp_path_factory.mktemp("added") / "set", 100)
    add_columns(
        remote,
        {"double": "int", "blob": "bytes"},
        lambda b: {"double": b["id"] * 2, "blob": [b"x" * 99] * len(b["id"])},
    )
    add_columns(remote, {"half": "float64"}, lambda b: {"half": b["id"] / 2})
    return remote


def sizes_of(remote, tmp_path):
    """Return the stored bytes of the set's own shards, and of those of each addition."""
    dataset = StreamingDataset(remote=remote, cache=CacheOptions(local=str(tmp_path / "other")))
    found = dataset.stream.sets[0]
    every = [part.shards for part in found.parts]
    return [sum(shard.stored.num_bytes for shard in shards) for shards in every]


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["id"], [0]),
        (["half", "id"], [0, 2]),
        (["half"], [2]),
        (["half", "blob", "double"], [1, 2]),
        (["half", "id", "double"], [0, 1, 2]),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_only_shards_that_hold_one_of_the_columns_are_fetched(added, tmp_path, names, parts):
    dataset = StreamingDataset(
        remote=added,
        cache=CacheOptions(local=str(tmp_path / "cache")),
        columns=names,
        batch_size=8,
        shuffle=True,
        include_ids=True,
    )
    found = {}
    for batch in dataset.batches():
        assert list(batch) == [*names, "_sample_id", "_position"]
        found.update(zip(batch["_sample_id"].tolist(), zip(*(batch[name] for name in names), strict=True), strict=True))
    values = {"id": int, "double": lambda n: 2 * n, "half": lambda n: n / 2, "blob": lambda n: b"x" * 99}
    assert found == {number: tuple(values[name](number) for name in names) for number in range(100)}
    assert dataset[7] == {name: values[name](7) for name in names}
    assert list(dataset[7]) == names
    sizes = sizes_of(added, tmp_path)
    assert dataset.stats(least=False).bytes_fetched == sum(sizes[number] for number in parts)
    copied = pickle.loads(pickle.dumps(dataset.stream))
    assert copied.sample(9) == {name: values[name](9) for name in names}
    dataset.close()


def test_a_set_of_which_only_added_columns_are_read_has_the_same_order_and_states(added, tmp_path):
    def dataset(columns):
        return StreamingDataset(
            remote=added,
            cache=CacheOptions(local=str(tmp_path / "cache")),
            columns=columns,
            batch_size=8,
            shuffle=True,
            include_ids=True,
        )

    orders = [[batch["_sample_id"].tolist() for batch in dataset(columns).batches()] for columns in (None, ["half"])]
    assert orders[0] == orders[1]
    assert dataset(None).cursor() == dataset(["half"]).cursor()


# ---------------------------------------------------------------------- mixtures and transforms


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two sets that have `id` and `text` in common, and a column each that the other lacks."""
    folder = tmp_path_factory.mktemp("pair")
    for name, extra in (("a", {"alpha": "float64"}), ("b", {"beta": "str"})):
        with MDSWriter(out=str(folder / name), columns={"id": "int", "text": "str"} | extra, size_limit=400) as writer:
            for number in range(30):
                writer.write(
                    {"id": number, "text": f"{name}{number}", **dict.fromkeys(extra, 0.5 if name == "a" else "b")}
                )
    return str(folder / "a"), str(folder / "b")


def test_streams_of_other_columns_mix_in_a_batch_where_those_read_are_the_same(pair):
    streams = [Stream(remote=root) for root in pair]
    dataset = StreamingDataset(streams=streams, columns=["text", "id"], batch_size=10, shuffle=True, include_ids=True)
    seen = {}
    for batch in dataset.batches():
        assert list(batch)[:2] == ["text", "id"]
        seen.update(zip(batch["_sample_id"].tolist(), batch["text"], strict=True))
    assert seen == {number: f"{'ab'[number // 30]}{number % 30}" for number in range(60)}
    assert dataset[31] == {"text": "b1", "id": 1}
    whole = StreamingDataset(streams=streams, batch_size=10, shuffle=True)
    with pytest.raises(SchemaError, match="different columns"):
        list(whole.batches())


def test_a_stream_may_have_columns_of_its_own(pair):
    streams = [Stream(remote=pair[0], columns=["alpha"]), Stream(remote=pair[1])]
    dataset = StreamingDataset(streams=streams, columns=["id"], batch_size=5)
    assert (dataset[2], dataset[32]) == ({"alpha": 0.5}, {"id": 2})


def test_a_column_that_a_transform_needs_must_be_read(tmp_path):
    stored = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stored, "png")
    with MDSWriter(out=str(tmp_path / "set"), columns={"id": "int", "image": "bytes"}) as writer:
        writer.write({"id": 1, "image": stored.getvalue()})
    root, decode = str(tmp_path / "set"), DecodeImages(size=8, columns=("image",))
    with pytest.raises(ValueError, match=r"DecodeImages needs the column 'image', and `columns` of .* names only id"):
        StreamingDataset(remote=root, columns=["id"], transform=decode)
    with pytest.raises(ValueError, match="needs the column 'image'"):
        StreamingDataset(streams=[Stream(remote=root, columns=["id"])], transform=decode)
    dataset = StreamingDataset(remote=root, columns=["image"], transform=decode, batch_size=1)
    assert next(dataset.batches())["image"].shape == (1, 8, 8, 3)
