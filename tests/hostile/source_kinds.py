"""Damaged files of the sources of `convert` that native code parses: valid values, or a typed error."""

import io
import json
import struct
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.conversion.conversion import memory_errors
from smalti.conversion.registry import open_source
from smalti.conversion.source import Source
from smalti.errors import SmaltiError
from smalti.format import Schema
from smalti.format.writing.arrow import encode_batch
from smalti.storage import open_store
from smalti.writer.tables.columns import plan_columns
from smalti.writer.tables.types import kinds_of
from smalti.writer.tables.values import plain_batch
from tests.hostile.mutations import mutate_bytes, mutate_json

_ROWS = 40


@dataclass(frozen=True)
class Folder:
    """The files of a source, one of them damaged."""

    format: str
    damaged: str
    files: dict[str, bytes] = field(repr=False)


class Sources:
    """Folders of one format, with one damaged file each."""

    def __init__(self, name: str, format: str) -> None:
        self.name, self._format = name, format

    def make(self, dice: Random) -> Folder:
        """Return a folder with one damaged file."""
        files = dict(dice.choice(whole_folders(self._format)))
        name = dice.choice(sorted(files))
        data = files[name]
        if name.endswith(".json"):
            files[name] = mutate_json(data.decode(), dice)
        elif dice.random() < 0.2:  # the end, where footers are
            files[name] = data[:-400] + mutate_bytes(data[-400:], dice)
        else:
            files[name] = mutate_bytes(data, dice)
        return Folder(self._format, name, files)

    def check(self, case: Folder) -> str:
        """Read and encode the rows as a conversion does; expect typed errors alone."""
        store = open_store("memory://hostile-source")
        for item in list(store.list()):
            store.delete(item.key)
        for name, data in case.files.items():
            store.put(name, data)
        try:
            with memory_errors(case.format):  # as `convert` reads
                rows = _read(open_source(store, case.format))
        except SmaltiError as error:
            return f"refused {type(error).__name__}"
        assert rows in (0, _ROWS), f"{rows} rows without an error"
        return f"{rows} rows"

    def dump(self, case: Folder) -> bytes:
        """Return the damaged file."""
        return case.files[case.damaged]


def _read(source: Source) -> int:
    """Read and encode all rows of a source; return their number."""
    schema = source.schema()
    plan = plan_columns(kinds_of(schema), nulls="mask")
    stored = Schema.from_columns(plan.encodings)
    rows = 0
    for part in source.parts():
        for batch in part.batches():
            assert batch.schema.types == schema.types
            plain = plain_batch(batch)
            if not plain.num_rows:
                continue
            plain.validate()
            rows += plain.num_rows
            encode_batch(stored, stored.codecs(), plan.prepare(plain))
    return rows


@cache
def whole_folders(format: str) -> list[dict[str, bytes]]:
    """Return undamaged folders of a format."""
    table = pa.table({
        "i": pa.array(range(_ROWS), pa.int32()),
        "s": [f"text {number % 7}" for number in range(_ROWS)],
        "p": [f"{number:03}" * 60 for number in range(_ROWS)],
        "l": [[number, number + 1][: number % 3] for number in range(_ROWS)],
        "st": [{"a": number, "b": [str(number)]} if number % 5 else None for number in range(_ROWS)],
        "d": pa.array([Decimal(number) for number in range(_ROWS)], pa.decimal128(20, 3)),
        "t": pa.array(range(_ROWS), pa.timestamp("us", "UTC")),
        "m": pa.array([[("k", number)] for number in range(_ROWS)], pa.map_(pa.string(), pa.int64())),
    })  # fmt: skip
    return {"parquet": _parquet, "litdata": _litdata, "huggingface": _dataset}[format](table)


def _parquet(table: pa.Table) -> list[dict[str, bytes]]:
    chosen = (
        {"compression": "none"},
        {"compression": "snappy", "row_group_size": 15},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "none", "use_dictionary": False, "column_encoding": {"i": "DELTA_BINARY_PACKED"}},
        {"compression": "none", "use_deprecated_int96_timestamps": True, "write_page_checksum": True},
        {"compression": "none", "store_schema": False},
    )
    folders = []
    for options in chosen:
        file = io.BytesIO()
        pq.write_table(table, file, **options)
        folders.append({"a.parquet": file.getvalue()})
    return folders


def _litdata(table: pa.Table) -> list[dict[str, bytes]]:
    rows = table.select(["i", "s", "l"])
    types = {"i": "int", "s": "str", "l": {"type": "list", "value": "int"}}
    config = {"item_loader": "PyTreeLoader", "types": types}
    index = {"chunks": [{"filename": "chunk-0-0.bin", "chunk_size": _ROWS}], "config": config}
    return [
        {"chunk-0-0.bin": _chunk_of_rows(rows, is_file), "index.json": json.dumps(index).encode()}
        for is_file in (True, False)
    ]


def _chunk_of_rows(table: pa.Table, is_file: bool) -> bytes:
    head = struct.pack(f"<{_ROWS + 2}I", _ROWS, *[4 * (_ROWS + 2)] * (_ROWS + 1))
    data = _arrow(table, is_file)
    return head + data + struct.pack("<I", len(data)) + b"LDARW01\0"


def _arrow(table: pa.Table, is_file: bool) -> bytes:
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=15)
    return sink.getvalue().to_pybytes()


def _dataset(table: pa.Table) -> list[dict[str, bytes]]:
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None}
    info = {"features": {"i": {"_type": "ClassLabel", "names": ["a", "b"]}}}
    return [{
        "data-00000-of-00001.arrow": _arrow(table, is_file=False),
        "state.json": json.dumps(state).encode(),
        "dataset_info.json": json.dumps(info).encode(),
    }]  # fmt: skip
