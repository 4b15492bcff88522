"""Shard tables of many rows, whole or with single values changed."""

from hashlib import sha256

import pyarrow as pa

from smalti.catalog.table.arrow import emit_table, parse_table
from smalti.format import FileInfo, Schema, ShardInfo

SCHEMA = Schema.from_columns({"id": "int", "t": "str"})
MANY = 17_000
"""More rows than are checked together."""


def file(name, number, size=4096):
    return FileInfo(name, size + number % 7, {"sha1": f"{number:040x}", "xxh64": f"{number:016x}"})


def shard(number, split="train", *, zipped=False):
    """The names differ in length, also within ten rows."""
    name = f"{split}/w/{number % 11}/shard.{number}.mds"
    return ShardInfo(
        SCHEMA, number % 1000, file(name, number), file(f"{name}.zstd", number, 999) if zipped else None,
        "zstd:7" if zipped else None, ("sha1", "xxh64") if number % 2 else ("sha1",), 1 << 26, split,
    )  # fmt: skip


def many_shards(count=MANY):
    """Every third one compressed; the last fiftieth in another split."""
    return [shard(n, "train" if n < count * 49 // 50 else "val", zipped=n % 3 == 0) for n in range(count)]


def table_of(shards):
    return pa.ipc.open_file(pa.BufferReader(emit_table(shards))).read_all()


def bytes_of(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def parsed(table):
    data = table if isinstance(table, bytes) else bytes_of(table)
    return parse_table(data, sha256=sha256(data).hexdigest(), where="table")


def edited(table, row, **values):
    """Return the table with other values in one row."""
    for name, value in values.items():
        place = table.column_names.index(name)
        items = table.column(place).to_pylist()
        items[row] = value
        column = pa.array(items, pa.string()).dictionary_encode() if _is_words(table, place) else None
        table = table.set_column(place, name, column or pa.array(items, table.column(place).type))
    return table


def _is_words(table, place):
    return pa.types.is_dictionary(table.column(place).type)
