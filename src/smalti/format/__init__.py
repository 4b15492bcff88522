"""Mosaic Data Shards: samples to bytes and bytes to samples, index files, checksums and compression.

Stores, caches, ranks and orders are not known here. This folder holds what a shard set says about itself (`index`,
`schema`) and the pieces of a file (`layout`, `text`, `compression`, `hashing`); `encodings` turns values into bytes,
`writing` samples into shards, and `reading` shards into samples and batches. Read `index` first, then `layout`,
`reading/shard` and `writing/builder`.
"""

from smalti.format.compression import Compression, parse_compression
from smalti.format.encodings.encoding import Encoding
from smalti.format.encodings.registry import parse_encoding, register_encoding, unregister_encoding
from smalti.format.hashing import BlockHashes, BlockList, new_hash, place_lists
from smalti.format.index import (
    MAX_INDEX_BYTES,
    FileInfo,
    ShardInfo,
    check_basename,
    emit_index,
    load_strict,
    parse_index,
)
from smalti.format.layout import num_bytes_of_empty
from smalti.format.reading.batch import decode_gathered
from smalti.format.reading.files import verify_file
from smalti.format.reading.joining import AnyShard, check_readable, open_shard
from smalti.format.reading.shard import Shard
from smalti.format.schema import Schema
from smalti.format.sizes import MAX_FILE_BYTES, parse_byte_count
from smalti.format.text import text_schema
from smalti.format.writing.builder import ShardBuilder, ShardPacker
from smalti.format.writing.sealing import FilledShard, ShardOptions

__all__ = [
    "MAX_FILE_BYTES",
    "MAX_INDEX_BYTES",
    "AnyShard",
    "BlockHashes",
    "BlockList",
    "Compression",
    "Encoding",
    "FileInfo",
    "FilledShard",
    "Schema",
    "Shard",
    "ShardBuilder",
    "ShardInfo",
    "ShardOptions",
    "ShardPacker",
    "check_basename",
    "check_readable",
    "decode_gathered",
    "emit_index",
    "load_strict",
    "new_hash",
    "num_bytes_of_empty",
    "open_shard",
    "parse_byte_count",
    "parse_compression",
    "parse_encoding",
    "parse_index",
    "place_lists",
    "register_encoding",
    "text_schema",
    "unregister_encoding",
    "verify_file",
]
