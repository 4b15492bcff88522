"""What columns become: numpy in the reader, tensors in the loaders, and what a transform may do with them."""

import threading
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti.compat.petastorm import TransformSpec, make_batch_reader
from smalti.errors import SchemaError, SmaltiError
from tests.compat.parquet_files import url, write_rows

pytestmark = pytest.mark.filterwarnings("error")


def one_batch(folder, table, **options):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(table), folder / "part-0.parquet", row_group_size=2)
    with make_batch_reader(url(folder), batch_size=100, shuffle_row_groups=False, **options) as reader:
        return next(reader), reader


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "bool"]
)
def test_numbers_keep_their_type(tmp_path, dtype):
    values = np.array([0, 1, 1], dtype)
    batch, reader = one_batch(tmp_path, {"x": values})
    assert batch.x.dtype == values.dtype
    assert batch.x.tolist() == values.tolist()
    assert np.dtype(reader.schema.fields["x"].numpy_dtype) == values.dtype


def test_lists_of_equal_length_become_one_array_and_others_an_array_of_arrays(tmp_path):
    even = pa.array([[[1, 2]], [[3, 4]], [[5, 6]]], pa.list_(pa.list_(pa.int16())))
    batch, reader = one_batch(tmp_path, {"even": even, "odd": [[1.0], [2.0, 3.0], []]})
    assert (batch.even.shape, batch.even.dtype, batch.even[2].tolist()) == ((3, 1, 2), np.int16, [[5, 6]])
    assert [row.tolist() for row in batch.odd] == [[1.0], [2.0, 3.0], []]
    assert reader.schema.fields["even"].shape == (None, None)


def test_text_bytes_decimals_and_times_are_whole(tmp_path):
    batch, _ = one_batch(
        tmp_path,
        {
            "text": ["a", "", "ü\0x"],
            "data": [b"\0", b"", b"\xff"],
            "price": [Decimal("1.10"), Decimal("2.00"), Decimal("-3.25")],
            "at": np.array(["2020-01-02T03"] * 3, "datetime64[us]"),
        },
    )
    assert batch.text.tolist() == ["a", "", "ü\0x"]
    assert batch.data.tolist() == [b"\0", b"", b"\xff"]
    assert batch.price.tolist() == [Decimal("1.10"), Decimal("2.00"), Decimal("-3.25")]
    assert batch.at[0] == np.datetime64("2020-01-02T03:00:00")


def test_a_missing_number_is_none_and_a_missing_float_nan(tmp_path):
    batch, _ = one_batch(tmp_path, {"n": [1, None], "f": [1.5, None]})
    assert batch.n.tolist() == [1, None]
    assert np.isnan(batch.f[1])


def test_a_column_whose_name_is_no_python_name_comes_in_dicts(tmp_path):
    pq.write_table(pa.table({"my col": [1]}), tmp_path / "a.parquet")
    with make_batch_reader(url(tmp_path)) as reader, pytest.raises(SchemaError, match="my col"):
        next(reader)
    with make_batch_reader(url(tmp_path)) as reader:
        assert [batch["my col"].tolist() for batch in reader.batches()] == [[1]]


def test_a_dot_in_a_name_is_no_path(tmp_path):
    table = pa.table({"a.b": [1, 2], "a": pa.array([{"b": 5}, {"b": 6}]), "ab": [7, 8]})
    pq.write_table(table, tmp_path / "a.parquet")
    with make_batch_reader(url(tmp_path), schema_fields=[r"a\.b"], shuffle_row_groups=False) as reader:
        assert [{name: each.tolist() for name, each in batch.items()} for batch in reader.batches()] == [
            {"a.b": [1, 2]}
        ]


# ---------------------------------------------------------------- transforms


def double(frame):
    frame["twice"] = frame["id"] * 2
    frame["pixels"] = [np.full((2, 3), row, np.uint8) for row in frame["id"]]
    return frame


SPEC = TransformSpec(
    double, edit_fields=[("twice", np.int64, (), False), ("pixels", np.uint8, (2, 3), False)], removed_fields=["id"]
)


@pytest.mark.parametrize("per", ["batch", "row_group"])
def test_a_transform_sees_frames_and_its_columns_come_out_as_declared(tmp_path, per):
    where = write_rows(tmp_path / "set")
    options = {"transform_spec": SPEC, "transform_per": per, "seed": 1, "batch_size": 7}
    with make_batch_reader(url(where), seed=1, batch_size=7) as plain:
        expected = [batch.id for batch in plain]
    with make_batch_reader(url(where), **options) as reader:
        batches = list(reader)
    assert [batch.twice.tolist() for batch in batches] == [(2 * ids).tolist() for ids in expected]
    assert batches[0]._fields == ("twice", "pixels")
    assert (batches[0].pixels.shape, batches[0].pixels.dtype) == ((7, 2, 3), np.uint8)
    assert batches[0].pixels[:, 0, 0].tolist() == expected[0].tolist()


def test_a_transform_per_row_group_gets_each_whole_row_group_once(tmp_path):
    where = write_rows(tmp_path / "set")
    seen = []

    def note(frame):
        seen.append(frame["id"].tolist())
        return frame

    with make_batch_reader(url(where), transform_spec=TransformSpec(note), transform_per="row_group") as reader:
        list(reader)
    assert sorted(seen) == [list(range(at, at + 10)) for at in range(0, 120, 10)]


def test_a_transform_per_row_group_meets_the_rows_that_a_predicate_left(tmp_path):
    where = write_rows(tmp_path / "set")
    options = {"transform_spec": TransformSpec(lambda frame: frame), "filters": [("id", ">", 114)]}
    with make_batch_reader(url(where), transform_per="row_group", **options) as reader:
        assert sorted(row for batch in reader for row in batch.id) == [115, 116, 117, 118, 119]


def test_selected_fields_come_in_their_order(tmp_path):
    where = write_rows(tmp_path / "set", files=1, a=float, b=float)
    with make_batch_reader(url(where), transform_spec=TransformSpec(selected_fields=["b", "id"])) as reader:
        assert next(reader)._fields == ("b", "id")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (TransformSpec(lambda frame: frame[:-1]), "returned 6 rows for 7"),
        (TransformSpec(lambda frame: frame.assign(more=1)), "do not match the declared ones"),
        (
            TransformSpec(lambda frame: frame, removed_fields=[], edit_fields=[("y", np.int8, (), False)]),
            "do not match",
        ),
        (TransformSpec(lambda frame: frame * 1.5), "holds float64, declared is int64"),
        (
            TransformSpec(
                lambda frame: frame.assign(x=[np.zeros(3)] * len(frame)), edit_fields=[("x", np.float64, (4,), False)]
            ),
            r"shape \(3,\), declared is \(4,\)",
        ),
    ],
    ids=["rows", "more", "fewer", "type", "shape"],
)
def test_a_transform_that_breaks_its_word_is_told(tmp_path, spec, said):
    where = write_rows(tmp_path / "set")
    with (
        make_batch_reader(url(where), transform_spec=spec, batch_size=7) as reader,
        pytest.raises(SchemaError, match=said),
    ):
        next(reader)


def test_an_error_of_the_transform_comes_out_as_it_is(tmp_path):
    where = write_rows(tmp_path / "set")

    def fail(frame):
        raise ZeroDivisionError("on purpose")

    reader = make_batch_reader(url(where), transform_spec=TransformSpec(fail))
    with reader, pytest.raises(ZeroDivisionError, match="on purpose"):
        next(reader)


def test_a_transform_that_hangs_is_told_after_the_timeout_and_not_waited_for_at_the_end(tmp_path, caplog):
    where, over = write_rows(tmp_path / "set"), threading.Event()

    def hang(frame):
        over.wait(60)
        return frame

    spec = TransformSpec(hang)
    try:
        told = pytest.raises(SmaltiError, match=r"not ready after 0\.2 s")
        with make_batch_reader(url(where), transform_spec=spec, timeout=0.2) as reader, told:
            next(reader)
    finally:
        over.set()
    assert "still reads or transforms after 0.2 s" in caplog.text


def test_a_specs_arguments_are_checked():
    with pytest.raises(ValueError, match="not both"):
        TransformSpec(removed_fields=["a"], selected_fields=["b"])
    with pytest.raises(ValueError, match="name, numpy type, shape, nullable"):
        TransformSpec(edit_fields=[("a", np.int8)])
