"""Where things lie in a shard file: the bytes around the samples, written and checked. Knows no encodings.

uint32 N | uint32 offset of each sample, and of the end | config as JSON | samples back to back
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from smalti.errors import FormatError
from smalti.format.encodings.encoding import Int64s
from smalti.format.info import ShardInfo
from smalti.format.schema import Schema
from smalti.format.sizes import VERSION

Offsets = np.ndarray[Any, "np.dtype[np.uint32]"]
OFFSET = np.dtype("<u4")
_OF_SAMPLES = frozenset(
    {"column_encodings", "column_names", "column_sizes", "columns", "format", "newline", "separator"}
)
"""Keys of a shard's description that say how its samples are read."""
_MAX_CONFIG_BYTES = 1 << 26
_MOST_TOLD = 200  # characters of a value in a message


def config_bytes(schema: Schema, *, compression: str | None, hashes: tuple[str, ...], size_limit: int | None) -> bytes:
    """The description that stands inside every shard, as MosaicML writes it."""
    config = {
        "column_encodings": schema.encodings,
        "column_names": schema.names,
        "column_sizes": schema.sizes,
        "compression": compression,
        "format": "mds",
        "hashes": hashes,
        "size_limit": size_limit,
        "version": VERSION,
    }
    return json.dumps(config, sort_keys=True).encode("ascii")


def num_bytes_of_empty(info: ShardInfo) -> int:
    """Return the size of the data file of a shard with these columns and options that has no samples."""
    if info.layout is not None:
        return len(info.layout.header)
    config = config_bytes(info.schema, compression=info.compression, hashes=info.hash_names, size_limit=info.size_limit)
    return 8 + len(config)


def head_bytes(config: bytes, lengths: Int64s) -> bytes:
    """What stands in front of the samples: their number, the table of offsets, and the config.

    Args:
        config: What `config_bytes` gives.
        lengths: Bytes of each sample, int64, shape (N,); the file stays below 4 GiB.
    """
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    table = (ends + (4 + 4 * len(ends) + len(config))).astype(OFFSET)
    return b"".join([len(lengths).to_bytes(4, "little"), table.tobytes(), config])


def compare_config(config: bytes, entry: Mapping[str, Any], *, what: str) -> None:
    """Return only if the description inside a shard says of its samples what its index entry says.

    For shards that Smalti wrote, where both come from one place: if they differ, the index was changed, or is that of
    other shards. MosaicML's reader ignores this description, and other writers put there what they like.

    Args:
        config: The description, JSON.
        entry: The index entry; only what it says of the samples is compared.
        what: The file's name, for messages.

    Raises:
        FormatError: They contradict each other.
    """
    try:
        found = json.loads(config) if len(config) <= _MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        found = None
    said = found if isinstance(found, dict) else {}
    for key in sorted(_OF_SAMPLES & entry.keys()):
        if said.get(key) != entry[key]:
            raise FormatError(
                f"{what}: its index entry says {key} {entry[key]!s:.{_MOST_TOLD}}, and the shard itself "
                f"{said.get(key)!s:.{_MOST_TOLD}}; the index was changed, or belongs to other shards. Restore it, or "
                "run the writer again.",
                key=key,
            )


def read_offsets(
    data: memoryview, *, samples: int, what: str, first: int | None = None, num_bytes: int | None = None
) -> Offsets:
    """The checked table of offsets, uint32, shape (N + 1,): ordered, inside the file, covering it to its last byte.

    Args:
        data: The whole file, or so much of its beginning that the table is in it.
        samples: How many samples the index declares.
        what: The file's name, for messages.
        first: Lowest offset that a sample may have; by default the end of the table.
        num_bytes: Size of the file that the offsets point into; by default that of `data`.

    Raises:
        FormatError: The header contradicts the index, or the offsets are not as said.
    """
    found = int.from_bytes(data[:4], "little")
    begin = 8 + 4 * samples
    if len(data) < begin or found != samples:
        raise FormatError(
            f"{what}: expected {samples} samples, as the index says, found {found} in {len(data)} bytes; the file is "
            "cut short, or belongs to another index. Fetch it again, or run the writer again.",
            expected=samples,
            found=found,
        )
    lowest, kind = (begin, "sample") if first is None else (first, "line")
    end = len(data) if num_bytes is None else num_bytes
    offsets: Offsets = np.frombuffer(data, OFFSET, samples + 1, offset=4)
    if offsets[0] < lowest or offsets[-1] != end or (offsets[1:] < offsets[:-1]).any():
        raise FormatError(
            f"{what}: the table of {kind} offsets is damaged: expected rising offsets from at least {lowest} to "
            f"{end}, the end of the data file. Fetch it again, or run the writer again.",
        )
    return offsets
