"""Hashes of the first bytes of shards, in the index file.

They are stored under Smalti's own key, because other readers refuse unknown fields in a shard's entry. The digest does
not cover them; it covers the hashes of the whole files, which are checked once a file is complete.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smalti.format import ShardInfo

FIRST_HASHES = "first_hashes"
"""The name below Smalti's key: a list of 16 hex digits, or null, for each shard."""
_HASH = re.compile("[0-9a-f]{16}", re.ASCII)


def encode_first_hashes(shards: Sequence[ShardInfo]) -> dict[str, list[str | None]]:
    """Return what is added below Smalti's key: nothing where no shard has such a hash."""
    found = [shard.raw.first_hash for shard in shards]
    if all(each is None for each in found):
        return {}
    return {FIRST_HASHES: [None if each is None else f"{each:016x}" for each in found]}


def decode_first_hashes(shards: Sequence[ShardInfo], extra: dict[str, Any]) -> tuple[ShardInfo, ...]:
    """Return the shards with the hashes below Smalti's key; missing or malformed hashes are ignored."""
    encoded = extra.get(FIRST_HASHES)
    if not isinstance(encoded, list) or len(encoded) != len(shards):
        return tuple(shards)
    return tuple(_with_first_hash(shard, each) for shard, each in zip(shards, encoded, strict=True))


def _with_first_hash(shard: ShardInfo, encoded: object) -> ShardInfo:
    if not isinstance(encoded, str) or not _HASH.fullmatch(encoded):
        return shard
    return replace(shard, raw=replace(shard.raw, first_hash=int(encoded, 16)))
