"""Hashes of the shards' first bytes in an index file.

They stand in Smalti's own key, for other readers refuse what they do not know in a shard's entry. The digest does not
cover them, but it covers the bytes that they are of, which are checked as well when all are here.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smalti.format import ShardInfo

FIRSTS = "first_hashes"
"""The name in Smalti's key: for each shard 16 hex digits, or null."""
_HASH = re.compile("[0-9a-f]{16}", re.ASCII)


def told_firsts(shards: Sequence[ShardInfo]) -> dict[str, list[str | None]]:
    """What is added to Smalti's key; nothing where no shard has such a hash."""
    found = [shard.raw.first_hash for shard in shards]
    if all(each is None for each in found):
        return {}
    return {FIRSTS: [None if each is None else f"{each:016x}" for each in found]}


def with_firsts(shards: Sequence[ShardInfo], extra: dict[str, Any]) -> tuple[ShardInfo, ...]:
    """The shards with what Smalti's key says; as they are where it says nothing, or nothing that can be understood."""
    told = extra.get(FIRSTS)
    if not isinstance(told, list) or len(told) != len(shards):
        return tuple(shards)
    return tuple(_with_first(shard, each) for shard, each in zip(shards, told, strict=True))


def _with_first(shard: ShardInfo, told: object) -> ShardInfo:
    if not isinstance(told, str) or not _HASH.fullmatch(told):
        return shard
    return replace(shard, raw=replace(shard.raw, first_hash=int(told, 16)))
