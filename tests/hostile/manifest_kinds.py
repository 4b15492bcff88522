"""Damaged versions of Smalti's own: the JSON header, and the Arrow table of shards that its digest names.

An attacker who can write the table can write its digest as well, so the digest always fits.
"""

import hashlib
import io
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa

from smalti.catalog.manifest import parse_header
from smalti.catalog.table.arrow import emit_table, parse_table
from smalti.errors import IndexFileError
from smalti.format import parse_index
from tests.hostile.index_kinds import check_message, check_shards
from tests.hostile.mutations import NUMBERS, TEXTS, mutate_bytes, mutate_json
from tests.hostile.seeds import MDS_INDEXES, MIXED_INDEXES

_HEADER = """{"smalti": 1, "version": 3, "parent": 2, "write_id": "20240607t101112-00", "operation": "append",
 "digest": "%s", "rows": 3, "num_shards": 1, "num_bytes": 352, "partitions": ["train"], "columns": {"a": "int"},
 "table_key": "_versions/%s.arrow", "table_sha256": "%s", "created": "2024-06-07T10:11:12Z", "lineage": {"x": [1]},
 "metadata": {}, "writes": {"20240607t101112-00": 3}}"""


@dataclass(frozen=True)
class DamagedVersion:
    """One of the two files of a version, damaged."""

    data: bytes
    is_table: bool


class Manifests:
    """Headers damaged as JSON; tables damaged in a value, in their description, or as bytes."""

    name = "manifest"

    def make(self, dice: Random) -> DamagedVersion:
        """Return one damaged file."""
        chance = dice.random()
        if chance < 0.3:
            digest = "ab" * 32
            return DamagedVersion(mutate_json(_HEADER % (digest, digest, digest), dice), is_table=False)
        table = dice.choice(_whole_tables())
        if chance < 0.5:
            return DamagedVersion(mutate_bytes(_emit(table), dice), is_table=True)
        return DamagedVersion(_emit(_edited(table, dice)), is_table=True)

    def check(self, case: DamagedVersion) -> str:
        """Expect a refusal that names the file, or shards with the guarantees of an index file."""
        try:
            if case.is_table:
                shards = parse_table(case.data, sha256=hashlib.sha256(case.data).hexdigest(), where="table")
            else:
                header = parse_header(case.data, where="header")
        except IndexFileError as error:
            check_message(error.message)
            return "refused table" if case.is_table else "refused header"
        if case.is_table:
            check_shards(shards)
            return "accepted table"
        assert header.version >= 1
        assert min(header.rows, header.num_shards, header.num_bytes) >= 0
        assert header.parent is None or 1 <= header.parent < header.version
        return "accepted header"

    def dump(self, case: DamagedVersion) -> bytes:
        """Return the file."""
        return case.data


@cache
def _whole_tables() -> tuple[pa.Table, ...]:
    tables = []
    for text in MDS_INDEXES[:4] + MIXED_INDEXES:
        shards, _ = parse_index(text.encode(), where="seed")
        table = pa.ipc.open_file(emit_table(shards)).read_all()
        of_earlier_releases = table.append_column("raw_first", pa.array(range(len(shards)), pa.int64()))
        tables += [table, of_earlier_releases]
    return tuple(tables)


def _emit(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _edited(table: pa.Table, dice: Random) -> pa.Table:
    """Return the table with values changed, a column of another type, dropped or repeated, or other metadata."""
    chance = dice.random()
    if chance < 0.2:
        about = mutate_json(table.schema.metadata[b"smalti"].decode(), dice)
        return table.replace_schema_metadata({"smalti": about} if dice.random() < 0.95 else None)
    for _ in range(dice.choice((1, 1, 2))):
        place = dice.randrange(table.num_columns)
        name, column = table.column_names[place], table.column(place)
        if chance < 0.3:
            table = dice.choice((table.remove_column(place), table.append_column(name, column)))
        else:
            table = table.set_column(place, name, _other_column(column, dice))
    return table


def _other_column(column: pa.ChunkedArray, dice: Random) -> Any:
    values = column.to_pylist()
    values[dice.randrange(len(values))] = dice.choice(_VALUES)
    try:
        return pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        kind = dice.choice((pa.string(), pa.int32(), pa.float64(), pa.binary(), pa.null(), pa.list_(pa.int8())))
        return pa.nulls(len(values), kind)


def _printable(texts: list[str]) -> list[str]:
    return [text for text in texts if "\ud800" not in text]


_VALUES: list[Any] = [
    None, *(number for number in NUMBERS if type(number) is int), *_printable(TEXTS),
    "[]", "{}", '{"sha1": 3}', '{"crc32": "00"}', '{"sha1": "zz"}', '{"a": {"b": 1}}', "[" * 3000, "sha1,sha1",
    "crc32", ",",
]  # fmt: skip
