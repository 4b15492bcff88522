"""Batches are the same with and without a transform of samples, and whole numbers of samples become int64."""

from datetime import timedelta
from decimal import Decimal

import numpy as np
import pytest
import torch

from smalti.errors import SchemaError
from smalti.format.encodings.numbers import SCALAR_NAMES
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.torch.collate import SampleCollate, columns_to_tensors
from smalti.writer import MDSWriter
from tests.typed_sets import write_typed_set

pytestmark = pytest.mark.torch

COUNT = 6


def value_of(encoding, number):
    if encoding == "json":
        return [{"of": number, "more": [1] * number}, None][number % 2 :][0]
    if encoding == "pkl":
        return {"set": {number}}
    if encoding.startswith("ndarray"):
        shape = (2,) if encoding.count(":") == 2 else (number + 1,)
        return np.full(shape, number, np.uint8 if encoding == "ndarray" else "int16")
    texts = {"bytes": b"x" * number, "str": "x" * number, "str_decimal": Decimal(number)}
    return texts.get(encoding, float(number) if "float" in encoding else number)


ENCODINGS = [
    "bytes", "str", "int", "str_int", "str_float", "str_decimal", "json", "pkl", "ndarray", "ndarray:int16",
    "ndarray:int16:2", *SCALAR_NAMES,
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A set with a column of each encoding that is not of images."""
    root = tmp_path_factory.mktemp("encodings") / "root"
    names = {f"c{number}": encoding for number, encoding in enumerate(ENCODINGS)}
    with MDSWriter(out=str(root), columns=names, allow_unsafe_types=True) as writer:
        for number in range(COUNT):
            writer.write({name: value_of(encoding, number) for name, encoding in names.items()})
    return str(root)


def batches(root, transform=None, **options):
    dataset = StreamingDataset(remote=root, transform=transform, allow_unsafe_types=True, **options)
    return list(StreamingDataLoader(dataset, batch_size=4))


def alike(one, other):
    """Return whether two values of a column of a batch are equal, of the same type and dtype."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("logical", [True, False])
def test_an_identity_transform_changes_no_batch_of_any_encoding(root, logical):
    plain, transformed = (batches(root, each, logical=logical) for each in (None, lambda sample: sample))
    assert [set(batch) for batch in plain] == [set(batch) for batch in transformed]
    differing = {
        ENCODINGS[int(name[1:])]
        for one, other in zip(plain, transformed, strict=True)
        for name in one
        if not alike(one[name], other[name])
    }
    assert differing == set()


def test_one_whole_number_per_sample_is_int64_as_losses_expect_it(root):
    batch = batches(root)[0]
    dtypes = {ENCODINGS[int(name[1:])]: value.dtype for name, value in batch.items() if isinstance(value, torch.Tensor)}
    whole = {name: dtype for name, dtype in dtypes.items() if "int" in name and "ndarray" not in name}
    assert whole == {
        **dict.fromkeys(["int", "str_int", "int8", "int16", "int32", "int64"], torch.int64),
        **dict.fromkeys(["uint8", "uint16", "uint32"], torch.int64),
        "uint64": torch.uint64,
    }
    assert dtypes["ndarray:int16:2"] == torch.int16
    torch.nn.functional.cross_entropy(torch.zeros(4, COUNT), batch[f"c{ENCODINGS.index('int32')}"])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"a": 1}, {"b": 1}], "only some samples of a batch have the column 'a'"),
        ([{"a": 1}, {"a": None}], "column 'a' holds None among int"),
        ([{"a": [1, 2]}, {"a": [1]}], "column 'a' cannot be collated"),
        ([{"a": {"x": 1}}, {"a": {"y": 1}}], "column 'a' cannot be collated"),
        ([{"a": 1}, {"a": "text"}], "column 'a' cannot be collated"),
        ([{"a": torch.ones(1)}, {"a": torch.ones(1, dtype=torch.int64), "b": 0}], "have the column 'b'"),
    ],
)
def test_what_cannot_be_collated_is_an_error_that_names_the_column(samples, message):
    with pytest.raises(SchemaError, match=message):
        SampleCollate()(samples)


def test_values_that_the_transform_adds_are_collated_as_torch_does():
    samples = [{"x": {"a": torch.ones(2), "b": n}, "y": (n, 0.5), "z": None, "t": timedelta(n)} for n in (1, 2)]
    found = SampleCollate()(samples)
    assert (found["x"]["a"].shape, found["x"]["b"].tolist()) == ((2, 2), [1, 2])
    assert [each.tolist() for each in found["y"]] == [[1, 2], [0.5, 0.5]]
    assert (found["z"], found["t"]) == ([None, None], [timedelta(1), timedelta(2)])
    assert [each.tolist() for each in SampleCollate()([(np.int32(1), 2), (np.int32(3), 4)])] == [[1, 3], [2, 4]]
    ragged = [{"a": torch.ones(n)} for n in (1, 2)]
    assert [each.shape for each in SampleCollate()(ragged)["a"]] == [(1,), (2,)]


def test_logical_values_are_collated_alike_where_none_is_null(tmp_path):
    root = write_typed_set(tmp_path / "typed")
    names = ["when", "day", "ok", "price", "info", "marks"]
    one, other = (
        list(StreamingDataLoader(StreamingDataset(remote=root, columns=names, transform=each), batch_size=8))
        for each in (None, lambda sample: sample)
    )
    assert {name for a, b in zip(one, other, strict=True) for name in a if not alike(a[name], b[name])} == set()


def test_a_number_that_int64_cannot_hold_leaves_its_column_as_it_is():
    assert columns_to_tensors({"n": [1, 1 << 80]}) == SampleCollate()([{"n": 1}, {"n": 1 << 80}]) == {"n": [1, 1 << 80]}


def test_tensors_of_a_transform_on_batches_keep_their_dtype():
    found = columns_to_tensors({"given": torch.ones(2, dtype=torch.int32), "label": np.array([1, 2], np.int32)})
    assert (found["given"].dtype, found["label"].dtype) == (torch.int32, torch.int64)
