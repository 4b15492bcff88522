"""Sets with very many columns: the work of planning, encoding and reading grows with their number, not its square."""

import pyarrow as pa
import pytest

from smalti import LocalDataset, convert
from smalti.format import Schema
from smalti.format.reading.batch import read_plan
from smalti.format.writing.arrow import encode_batch
from smalti.writer.tables.columns import plan_columns
from smalti.writer.tables.types import kind_of
from tests.conversion.rows import table_source

_COLUMNS = 2_000


class Name(str):
    """A name of a column that counts how often it is compared."""

    compared = 0

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def plan(names):
    plan_columns([(name, kind_of(pa.int32())) for name in names], dict.fromkeys(names), dict.fromkeys(names, "reject"))


def encode(names):
    schema = Schema.from_columns(dict.fromkeys(names, "int32"))
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int32())] * len(names), list(map(str, names)))
    encode_batch(schema, schema.codecs(), batch)


def read_all(names):
    read_plan(Schema.from_columns(dict.fromkeys(names, "int32")), allow_unsafe_types=False)


def read_chosen(names):
    read_plan(Schema.from_columns(dict.fromkeys(names, "int32")), allow_unsafe_types=False, names=tuple(names))


@pytest.mark.parametrize("work", [plan, encode, read_all, read_chosen])
def test_each_name_is_compared_a_bounded_number_of_times(work):
    Name.compared = 0
    work([Name(f"c{number}") for number in range(_COLUMNS)])
    assert Name.compared < 50 * _COLUMNS


@pytest.mark.slow
def test_a_table_of_thousands_of_columns_has_all_its_values(tmp_path):
    columns = {f"c{number}": pa.array([number, -number], pa.int32()) for number in range(_COLUMNS)}
    convert(table_source(pa.table(columns)), tmp_path / "set", processes=1)
    rows = LocalDataset(tmp_path / "set")
    assert (rows[0]["c1999"], rows[1]["c7"], len(rows[1])) == (1999, -7, _COLUMNS)
