"""Mosaic Data Shards: bytes to samples and samples to bytes. Knows no network, no store, no ranks and no order."""

from smalti.format.builder import BuiltShard, ShardBuilder, ShardOptions
from smalti.format.compression import Compression, parse_compression
from smalti.format.encoding import Encoding
from smalti.format.hashing import (
    HASH_NAMES,
    Hasher,
    check_hash_names,
    compare_digests,
    digest_bytes,
    new_hash,
)
from smalti.format.index import MAX_INDEX_BYTES, emit_index, load_strict, parse_index
from smalti.format.info import FileInfo, ShardInfo
from smalti.format.names import check_basename
from smalti.format.reader import Shard
from smalti.format.registry import parse_encoding
from smalti.format.schema import Schema
from smalti.format.sizes import MAX_FILE_BYTES, parse_byte_count, parse_size_limit
from smalti.format.verifying import verify_file

__all__ = [
    "HASH_NAMES",
    "MAX_FILE_BYTES",
    "MAX_INDEX_BYTES",
    "BuiltShard",
    "Compression",
    "Encoding",
    "FileInfo",
    "Hasher",
    "Schema",
    "Shard",
    "ShardBuilder",
    "ShardInfo",
    "ShardOptions",
    "check_basename",
    "check_hash_names",
    "compare_digests",
    "digest_bytes",
    "emit_index",
    "load_strict",
    "new_hash",
    "parse_byte_count",
    "parse_compression",
    "parse_encoding",
    "parse_index",
    "parse_size_limit",
    "verify_file",
]
