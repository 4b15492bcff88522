"""Read plans: what reading needs to know about a schema, computed once. No shard, no file, no bytes."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.format.encodings.arrays import NdArray
from smalti.format.encodings.encoding import Encoding
from smalti.format.encodings.registry import num_replaced
from smalti.format.encodings.scalars import Scalar
from smalti.format.encodings.text import Bytes
from smalti.format.schema import Schema

_MAX_PLANS = 256
_plans: "dict[tuple[Schema, bool, int], ReadPlan]" = {}


@dataclass(frozen=True)
class ColumnReadPlan:
    """Location, decoder and batch form of the values of one column."""

    name: str
    codec: Encoding
    size: int | None
    """Bytes of each value; None if its length stands in front of the sample."""
    dtype: "np.dtype[Any] | None"
    """Element type, little-endian, if a batch of the column is one array; else None."""
    shape: tuple[int, ...]
    """Shape of one value of such a column."""
    is_verbatim: bool
    """True if batches carry the stored bytes themselves."""


@dataclass(frozen=True, eq=False)
class ReadPlan:
    """A schema prepared for reading.

    Equal schemas share one object, so that batches can compare shards by identity.
    """

    schema: Schema
    columns: tuple[ColumnReadPlan, ...]
    steps: tuple[tuple[str, Encoding, Callable[[bytes], Any], int | None], ...]
    """Name, encoding, decoder and size of each column, for single samples."""
    head_bytes: int
    """Bytes of the lengths in front of each sample."""
    lengths: Callable[..., tuple[int, ...]]
    """Unpacks these lengths from a buffer at an offset."""
    min_bytes: int
    """Bytes of a sample whose columns of varying length are all empty."""


def read_plan(schema: Schema, *, allow_unsafe_types: bool) -> ReadPlan:
    """Return the plan of a schema; thread-safe.

    Raises:
        SchemaError: A column's encoding is unknown or unsafe.
    """
    key = schema, allow_unsafe_types, num_replaced()
    found = _plans.get(key)
    if found is None:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        # Not lru_cache: threads that call it at the same time would get different objects.
        found = _plans.setdefault(key, _make_plan(schema, allow_unsafe_types=allow_unsafe_types))
    return found


def _make_plan(schema: Schema, *, allow_unsafe_types: bool) -> ReadPlan:
    codecs = schema.codecs(allow_unsafe_types=allow_unsafe_types)
    columns = tuple(map(_column, schema.names, codecs, schema.sizes))
    num_lengths = schema.sizes.count(None)
    return ReadPlan(
        schema,
        columns,
        tuple((column.name, column.codec, column.codec.decode, column.size) for column in columns),
        4 * num_lengths,
        struct.Struct(f"<{num_lengths}I").unpack_from,
        4 * num_lengths + sum(size for size in schema.sizes if size is not None),
    )


def _column(name: str, codec: Encoding, size: int | None) -> ColumnReadPlan:
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    if isinstance(codec, Scalar):
        dtype = codec.dtype
    elif isinstance(codec, NdArray) and codec.dtype is not None and codec.shape is not None:
        dtype, shape = codec.dtype, codec.shape
    return ColumnReadPlan(name, codec, size, dtype, shape, is_verbatim(codec))


def is_verbatim(codec: Encoding) -> bool:
    """Return whether batches carry the stored bytes themselves, as they do for bytes and image files."""
    return codec.is_image or isinstance(codec, Bytes)
