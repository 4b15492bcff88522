"""Reading back what a builder wrote, and comparing it with the original values, for tests of losslessness."""

import math
from fractions import Fraction

import numpy as np
from PIL import Image

from smalti.errors import SchemaError
from smalti.format import Schema, Shard, ShardBuilder, ShardOptions
from tests.hostile.files import scratch_files
from tests.hostile.shard_kinds import plain_read

NUMBERS = [
    "int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
]  # fmt: skip


def read_back(builder, columns):
    """Return every sample of the built shards with its stored bytes by column."""
    rows = []
    for filled in builder.finish():
        built = filled.seal()
        data = bytes(built.payloads[0])
        with scratch_files([data]) as (path,):
            shard = Shard.open(path, built.info)
            for number in range(len(shard)):
                stored = plain_read(data, built.info, number)
                assert stored is not None
                rows += [(shard[number], dict(zip(columns, stored, strict=True)))]
            shard.close()
    return rows


def read_column(builder, name):
    """Return all values of one column of the single built shard, read at once."""
    (filled,) = builder.finish()
    built = filled.seal()
    with scratch_files([bytes(built.payloads[0])]) as (path,):
        shard = Shard.open(path, built.info)
        values = shard.batch(np.arange(len(shard)))[name]
        shard.close()
    return values.tolist()


def refusal_of(add, given):
    """Return the SchemaError that `add` raises for this value, or None."""
    try:
        add(given)
    except SchemaError as refusal:
        return refusal
    return None


def new_builder(columns):
    return ShardBuilder(Schema.from_columns(columns), ShardOptions(hashes=(), size_limit=None))


def is_same_number(a, b):
    a, b = (value.item() if isinstance(value, np.generic | np.ndarray) else value for value in (a, b))
    if not math.isfinite(a) or not math.isfinite(b):
        return a == b or (math.isnan(a) and math.isnan(b))
    # Fractions, because comparing a float with an integer in floats would round; zero has a sign in floats alone.
    has_sign = not isinstance(a, int) or a != 0
    return Fraction(a) == Fraction(b) and (not has_sign or math.copysign(1, a) == math.copysign(1, b))


def is_same_array(given, read):
    wanted = np.asarray(given)
    same_kind = wanted.dtype.newbyteorder("=") == read.dtype.newbyteorder("=")
    return same_kind and wanted.shape == read.shape and wanted.astype(read.dtype).tobytes() == read.tobytes()


def is_same_json(given, read):
    if isinstance(given, np.ndarray | np.generic):
        given = given.tolist()
    if isinstance(given, list | tuple):
        return type(read) is list and len(given) == len(read) and all(map(is_same_json, given, read))
    if isinstance(given, dict):
        return (
            type(read) is dict
            and list(given) == list(read)
            and all(is_same_json(given[key], read[key]) for key in given)
        )
    return type(given) is type(read) and repr(given) == repr(read)


def is_same(encoding, given, read, stored):
    """Return whether `read` equals `given` as far as its encoding can represent it."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given) == (read if encoding == "bytes" else stored)
    if encoding in NUMBERS:
        return is_same_number(given, read)
    if encoding.startswith("ndarray"):
        return (
            is_same_array(given, read)
            if isinstance(given, np.ndarray)
            else np.array_equal(given, read.tolist(), equal_nan=True)
        )
    if encoding == "json":
        return is_same_json(given, read)
    if encoding == "str_float":
        return type(read) is float and is_same_number(float(given), read)
    if isinstance(given, Image.Image):
        return (
            given.mode == read.mode
            and given.size == read.size
            and (encoding == "jpeg" or given.tobytes() == read.tobytes())
        )
    if encoding.startswith("list") or encoding == "jpeg_array":
        return len(given) == len(read)
    if encoding == "str_int":
        return type(read) is int and given == read
    return type(given) is type(read) and repr(given) == repr(read)
