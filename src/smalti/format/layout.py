"""Where things lie in a shard file: the bytes around the samples, written and checked. Knows no encodings.

uint32 N | uint32 offset of each sample, and of the end | config as JSON | samples back to back
"""

import json
from typing import Any

import numpy as np

from smalti.errors import FormatError
from smalti.format.info import VERSION
from smalti.format.schema import Schema

Offsets = np.ndarray[Any, "np.dtype[np.uint32]"]
OFFSET = np.dtype("<u4")


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


def head_bytes(config: bytes, lengths: "np.ndarray[Any, np.dtype[np.int64]]") -> bytes:
    """What stands in front of the samples: their number, the table of offsets, and the config.

    Args:
        config: What `config_bytes` gives.
        lengths: Bytes of each sample, int64, shape (N,); the file stays below 4 GiB.
    """
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    table = (ends + (4 + 4 * len(ends) + len(config))).astype(OFFSET)
    return b"".join([len(lengths).to_bytes(4, "little"), table.tobytes(), config])


def read_offsets(data: memoryview, *, samples: int, what: str, num_bytes: int | None = None) -> Offsets:
    """The checked table of offsets, uint32, shape (N + 1,): ordered, inside the file, covering it to its last byte.

    Args:
        data: The whole file, or so much of its beginning that the table is in it.
        samples: How many samples the index declares.
        what: The file's name, for messages.
        num_bytes: Of the whole file; by default those of `data`.

    Raises:
        FormatError: The header contradicts the index, or the offsets are not as said.
    """
    found = int.from_bytes(data[:4], "little")
    begin = 8 + 4 * samples
    if len(data) < begin or found != samples:
        raise FormatError(
            f"{what}: expected {samples} samples, as the index says, found {found} in {len(data)} bytes; the shard is "
            "cut short, or belongs to another index. Fetch it again, or run the writer again.",
            expected=samples,
            found=found,
        )
    end = len(data) if num_bytes is None else num_bytes
    offsets: Offsets = np.frombuffer(data, OFFSET, samples + 1, offset=4)
    if offsets[0] < begin or offsets[-1] != end or (offsets[1:] < offsets[:-1]).any():
        raise FormatError(
            f"{what}: the table of sample offsets is damaged: expected rising offsets from at least {begin} to "
            f"{end}, the end of the file. Fetch it again, or run the writer again.",
        )
    return offsets
