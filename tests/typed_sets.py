"""A small set whose stored values stand for others, and what readers are to get."""

from decimal import Decimal
from pathlib import Path

import numpy as np

from smalti.catalog import Draft, new_write_id, publish
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.storage import open_store
from smalti.writer import ShardUploader

COLUMNS = {
    "id": "int",
    "when": "int64",
    "day": "int32",
    "ok": "uint8",
    "age": "int16",
    "age__is_null": "uint8",
    "name": "str",
    "name__is_null": "uint8",
    "box": "ndarray:float32:2",
    "box__is_null": "uint8",
    "price": "str_decimal",
    "info": "json",
    "marks": "ndarray:uint8",
}
LOGICAL = {
    "when": {"type": "timestamp", "unit": "us", "zone": "UTC"},
    "day": {"type": "date"},
    "ok": {"type": "bool"},
    "age": {"type": "plain", "mask": True},
    "name": {"type": "plain", "mask": True},
    "box": {"type": "plain", "mask": True},
    "price": {"type": "decimal", "precision": 5, "scale": 2},
    "info": {"type": "map", "keys": {"type": "int"}, "values": {"type": "date"}},
    "marks": {"type": "array", "of": {"type": "bool"}},
}


def stored(number: int) -> dict:
    """Return the stored sample with this id; multiples of 3 have nulls."""
    is_null = number % 3 == 0
    return {
        "id": number,
        "when": 1_000_000 * number,
        "day": number,
        "ok": number % 2,
        "age": 0 if is_null else number,
        "age__is_null": int(is_null),
        "name": "" if is_null else f"n{number}",
        "name__is_null": int(is_null),
        "box": np.array([0, 0] if is_null else [number, 0.5], np.float32),
        "box__is_null": int(is_null),
        "price": Decimal(number).scaleb(-2),
        "info": [[1, number], [2, None]],
        "marks": np.array([1, 0, number % 2], np.uint8),
    }


def wanted(number: int) -> dict:
    """Return the sample as it is read, with arrays as lists."""
    is_null = number % 3 == 0
    day = np.datetime64("1970-01-01") + np.timedelta64(number, "D")
    return {
        "id": number,
        "when": np.datetime64(f"1970-01-01T00:00:{number:02}.000000"),
        "day": day,
        "ok": number % 2 == 1,
        "age": None if is_null else number,
        "name": None if is_null else f"n{number}",
        "box": None if is_null else [number, 0.5],
        "price": Decimal(number).scaleb(-2),
        "info": {1: day, 2: None},
        "marks": [True, False, number % 2 == 1],
    }


def plain(sample: dict) -> dict:
    """Return a sample with arrays as lists, so that it can be compared."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}


def write_typed_set(root: "Path | str", count: int = 40, *, logical: "dict | None" = None, first: int = 0) -> str:
    """`count` samples from id `first` on, in shards of about ten."""
    store, write_id, schema = open_store(str(root)), new_write_id(), Schema.from_columns(COLUMNS)
    uploader = ShardUploader(store, f"{write_id}/0", ShardBuilder(schema, ShardOptions(size_limit=1200)))
    for number in range(first, first + count):
        uploader.write(stored(number))
    publish(store, Draft(write_id, schema, uploader.finish(), logical=LOGICAL if logical is None else logical))
    return str(root)
