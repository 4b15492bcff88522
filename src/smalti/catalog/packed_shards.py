"""Shards as a short text, with which Spark's tasks answer: a tenth of their JSON, so that a driver can hold them."""

import base64
import binascii
import zlib
from collections.abc import Sequence

from smalti.catalog.shard_table import ShardTable
from smalti.catalog.table import checked_table, emit_table
from smalti.errors import IndexFileError
from smalti.format import ShardInfo

_LEVEL = 6
_MAX_BYTES = 1 << 30
"""Of one text, unpacked: about five million shards."""


def pack_shards(shards: Sequence[ShardInfo]) -> str:
    """The shards as ASCII text."""
    return base64.b64encode(zlib.compress(emit_table(shards), _LEVEL)).decode("ascii")


def unpack_shards(text: str, *, where: str) -> ShardTable:
    """The shards of such a text, checked as those of an index file are.

    Raises:
        IndexFileError: It is no such text, or its content cannot be trusted.
    """
    try:
        inflating = zlib.decompressobj()
        data = inflating.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise IndexFileError(f"{where} is not a packed list of shards: {str(error)[:200]}", where=where) from error
    if not inflating.eof:
        raise IndexFileError(
            f"{where}: a packed list of shards is cut short, or larger than {_MAX_BYTES} bytes", where=where
        )
    return checked_table(data, where=where)
