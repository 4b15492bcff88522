"""The layout of an MDS shard file: the bytes around the samples, written and checked. Knows no encodings.

uint32 N | uint32 offset of each sample, and of the end | config as JSON | samples back to back
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from smalti.errors import FormatError
from smalti.format.encodings.encoding import Int64s
from smalti.format.index import ShardInfo

Offsets = np.ndarray[Any, "np.dtype[np.uint32]"]
OFFSET = np.dtype("<u4")
_SAMPLE_KEYS = frozenset(
    {"column_encodings", "column_names", "column_sizes", "columns", "format", "newline", "separator"}
)
"""Keys of a shard's config that determine how its samples are read."""
_MAX_CONFIG_BYTES = 1 << 26
_MAX_SHOWN_CHARS = 200  # characters of a value in a message


def encode_config(config: Mapping[str, Any]) -> bytes:
    """Return the description that stands inside every MDS shard, and ends every meta file, as MosaicML writes it."""
    return json.dumps(config, sort_keys=True).encode("ascii")


def num_bytes_of_empty(info: ShardInfo) -> int:
    """Return the size of the data file of a shard with these columns and options that has no samples."""
    if info.layout is not None:
        return len(info.layout.header)
    return 8 + len(encode_config(info.config()))


def head_bytes(config: bytes, lengths: Int64s, first: int | None = None) -> bytes:
    """Return the bytes in front of the samples: their number, the table of offsets, and the config.

    `lengths` are the bytes of each sample, int64, shape (N,); the file stays below 4 GiB. In a meta file, `first` is
    the offset of the first sample in the data file.
    """
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    table = (ends + (4 + 4 * len(ends) + len(config) if first is None else first)).astype(OFFSET)
    return b"".join([len(lengths).to_bytes(4, "little"), table.tobytes(), config])


def compare_config(config: bytes, entry: Mapping[str, Any], *, what: str) -> None:
    """Return only if the config inside a shard describes its samples as its index entry does.

    For shards that Smalti wrote, where both have one origin: a difference means that the index was changed, or belongs
    to other shards. MosaicML's reader ignores the config, and other writers may store anything there.

    Only the description of the samples is compared, of the config (JSON) and the index entry.

    Raises:
        FormatError: They contradict each other.
    """
    try:
        found = json.loads(config) if len(config) <= _MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        found = None
    own = found if isinstance(found, dict) else {}
    for key in sorted(_SAMPLE_KEYS & entry.keys()):
        if own.get(key) != entry[key]:
            raise FormatError(
                f"{what}: its index entry says {key} {entry[key]!s:.{_MAX_SHOWN_CHARS}}, and the shard itself "
                f"{own.get(key)!s:.{_MAX_SHOWN_CHARS}}; the index was changed, or belongs to other shards. Restore it, "
                "or run the writer again.",
                key=key,
            )


def read_offsets(
    data: memoryview, *, samples: int, what: str, first: int | None = None, num_bytes: int | None = None
) -> Offsets:
    """Return the checked table of offsets, uint32, shape (N + 1,): rising, from `first` to the end of the file.

    Args:
        data: The whole file, or enough of its beginning to hold the table.
        samples: Number of samples that the index declares.
        what: The file's name, for messages.
        first: Lowest offset that a sample may have; by default the end of the table.
        num_bytes: Size of the file that the offsets point into; by default that of `data`.

    Raises:
        FormatError: The header contradicts the index, or the offsets are damaged.
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
