"""Small undamaged shards to start from; together they have every encoding."""

from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from smalti.format import FileInfo, Schema, ShardBuilder, ShardInfo, ShardOptions
from smalti.format.hashing import digest_bytes


@dataclass(frozen=True)
class Whole:
    """An undamaged shard with its hashes."""

    info: ShardInfo
    files: tuple[bytes, ...]
    """The data file, and the meta file of a text shard; uncompressed."""


def picture(kind: str, number: int) -> bytes:
    """Return a small image file."""
    out = BytesIO()
    Image.new("RGB", (3 + number, 2), (number, 40, 250)).save(out, kind)
    return out.getvalue()


def _row(number: int) -> dict[str, Any]:
    """Return a value for every encoding."""
    image = Image.new("L", (2, 1 + number), number)
    return {
        "bytes": bytes(range(number, number + 9)),
        "str": "héllo\x00" * number,
        "int": -number,
        "uint8": number,
        "int16": -300 * number,
        "uint64": 2**64 - 1 - number,
        "float16": np.float16(number),
        "float32": np.float32(0.5),
        "float64": number / 3,
        "str_int": 10**number,
        "str_float": number / 7,
        "str_decimal": Decimal(number) / 8,
        "json": {"k": [number, None, "é"]},
        "ndarray": np.arange(number + 1, dtype=np.float64),
        "ndarray:int16": np.ones((2, number + 1), np.int16),
        "ndarray:float32:2": np.array([number, 0.5], np.float32),
        "pil": image,
        "jpeg": picture("JPEG", number),
        "png": picture("PNG", number),
        "list[pil]": [image] * number,
        "list[jpeg]": [Image.open(BytesIO(picture("JPEG", number)))] * number,
        "list[png]": [Image.open(BytesIO(picture("PNG", number)))] * number,
        "jpeg_array": [picture("JPEG", i) for i in range(number + 1)],
    }


_GROUPS = [
    ("int", "uint8", "int16", "uint64", "float16", "float32", "float64", "ndarray:float32:2"),
    ("bytes", "int", "bytes"),
    ("str", "json", "str_int", "str_float", "str_decimal"),
    ("ndarray", "ndarray:int16", "int"),
    ("pil", "jpeg", "png"),
    ("list[pil]", "list[jpeg]"),
    ("list[png]", "jpeg_array"),
]


@cache
def whole_shards() -> tuple[Whole, ...]:
    """Return one shard of three samples for each group of encodings, and an empty one."""
    shards = [_build(group, 3) for group in _GROUPS]
    nothing = bytes(4) + (8).to_bytes(4, "little")
    raw = FileInfo("shard.00000.mds", 8, digest_bytes(nothing, ["xxh3_64"]))
    empty = ShardInfo(shards[0].info.schema, 0, raw, hash_names=("xxh3_64",))
    return *shards, Whole(empty, (nothing,))


def _build(group: tuple[str, ...], count: int) -> Whole:
    names = {f"c{i}": encoding for i, encoding in enumerate(group)}
    builder = ShardBuilder(Schema.from_columns(names), ShardOptions(hashes=("xxh3_64",)))
    for number in range(count):
        row = _row(number)
        builder.add({name: row[encoding] for name, encoding in names.items()})
    (filled,) = builder.finish()
    built = filled.seal()
    return Whole(built.info, tuple(bytes(payload) for payload in built.payloads))
