"""Opening a shard of any format, and refusing those that may not be decoded. Knows no stores."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from smalti.errors import FormatError
from smalti.format.info import ShardInfo
from smalti.format.reader import Shard
from smalti.format.schema import Schema
from smalti.format.text_shard import TextShard

AnyShard = Shard | TextShard


def open_shard(
    paths: Sequence[Path], info: ShardInfo, *, allow_unsafe_types: bool = False, check_config: bool = False
) -> AnyShard:
    """The open shard whose uncompressed files are `paths`, in the order of `info.raw_files`.

    With `check_config`, what the shard itself says of its columns must be what `info` says: for shards that Smalti
    wrote.

    Raises:
        ChecksumMismatch: The size of a file is not the declared one.
        FormatError: A file is damaged or contradicts the index.
        SchemaError: A column whose encoding is refused.
        OSError: A file cannot be opened.
    """
    if len(paths) != len(info.raw_files):
        raise FormatError(f"{info.raw.basename}: expected {len(info.raw_files)} files, found {len(paths)}.")
    if info.meta is None:
        return Shard.open(paths[0], info, allow_unsafe_types=allow_unsafe_types, check_config=check_config)
    return TextShard.open(paths[0], paths[1], info, check_config=check_config)


def check_readable(shards: Iterable[ShardInfo], *, allow_unsafe_types: bool = False) -> None:
    """Return only if the columns of all shards may be decoded; fast, since shards share schemas.

    Raises:
        SchemaError: A column is unsafe (`pkl`) and `allow_unsafe_types` is not given.
    """
    seen: set[int] = set()
    kept: list[Schema] = []  # so that no number in `seen` is used again
    for shard in shards:
        if shard.meta is None and id(shard.schema) not in seen:
            shard.schema.codecs(allow_unsafe_types=allow_unsafe_types)
            seen.add(id(shard.schema))
            kept.append(shard.schema)
