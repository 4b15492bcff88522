"""Seeded damage: random changes of parsed JSON, and of bytes, independent of what they contain."""

import copy
import json
from random import Random
from typing import Any

NUMBERS = [
    -(2**63) - 1, -(2**63), -(2**31), -5, -1, 0, 1, 2, 3, 7, 8, 63, 64, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32 - 1,
    2**32,
    2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 1.5, 1.0, -0.0, 1e300, float("inf"), float("nan"), True, False,
]  # fmt: skip
TEXTS = [
    "", ".", "..", "/", "//", "a/", "/a", "~", "~root/x", "../x", "a/../../x", "a/./b", "..\\x", "C:\\x", "C:x",
    "\\\\host\\x",
    "/etc/passwd", "file:///etc/passwd", "s3://bucket/key", "http://169.254.169.254/", "a\x00b", "a\nb", " ", "\u202e",
    "\ufeff",
    "\uff0e\uff0e/x", "..%2fx", "%2e%2e/x", "\u2025/x", "\u2215etc", "\ud800", "é", "e\u0301", "x" * 300, "x" * 2000,
    "CON",
    "index.json", "_versions/1.json", "shard.00000.mds", "shard.00001.mds", "mds", "json", "csv", "tsv", "xsv", "MDS",
    "zstd", "zstd:0", "zstd:99", "zstd:-1", "br", "br:11", "bz2", "gz:9", "snappy", "snappy:1", "lzma", "zstd:7:7",
    "zstd:٣",
    "sha1", "md5", "xxh3_64", "xxh64", "shake_128", "crc32", "SHA1", "0" * 40, "g" * 40, "0" * 16, "A" * 16,
    "int", "int8", "str", "bytes", "pkl", "float", "ndarray", "ndarray:int32", "ndarray:int32:2,2", "ndarray:int32:0",
    "json",
    "ndarray:float32:99999,99999,99999", "ndarray:bool", "ndarray:int32:-1", "ndarray:int32:٣", "ndarray:" + "1," * 80,
    "list[jpeg]", "jpeg_array", "pil", "png", "list[pkl]", "os.system", "\n", "\r\n", "\t", ",", "::", "\x00", '"',
    "null", "7",
    "64mb", "-1kb", "1e9", "9" * 400,
]  # fmt: skip
KEYS = [
    "shards", "version", "format", "samples", "bytes", "basename", "hashes", "raw_data", "zip_data", "raw_meta",
    "zip_meta",
    "column_names", "column_sizes", "column_encodings", "columns", "newline", "separator", "compression", "size_limit",
    "smalti", "__class__", "__proto__", "Samples", "samples ", "\u0455amples", "", "\x00", "path",
]  # fmt: skip
BOMBS = [
    b"[" * 3_000, b"[" * 100 + b"]" * 100, b'{"a":' * 200, b"[" * 3_000 + b"]" * 3_000, b"9" * 5_000,
    b"-" + b"9" * 5_000 + b".5",
    b"1e999999999", b"0." + b"0" * 5_000 + b"1", b"[" + b"0," * 5_000 + b"0]", b'"' + b"\\u0000" * 1_000 + b'"',
    b"NaN", b"Infinity",
    b"-Infinity", b"1.0", b"-0", b"true", b"null", b"\xff", b'"\xed\xa0\x80"', b'"\\ud800"', b"'x'", b"0x10", b"01",
    b"/**/1",
]  # fmt: skip
SMALL_OR_EDGE = [0, 1, 2, 3, 4, 7, 8, 16, 127, 128, 255, 256, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1]


def mutate_json(text: str, dice: Random) -> bytes:
    """Return `text` (JSON) with one to four changes of its values, keys or structure, and sometimes of its bytes."""
    obj = json.loads(text)
    if dice.random() < 0.9:
        for _ in range(dice.choice((1, 1, 1, 2, 4))):
            _change_somewhere(obj, dice)
    data = json.dumps(obj, ensure_ascii=dice.random() < 0.7).encode("utf-8", "surrogatepass")
    chance = dice.random()
    if chance < 0.1:
        return mutate_bytes(data, dice)
    if chance < 0.2:
        return _with_bomb(data, dice)
    return data


def mutate_bytes(data: bytes, dice: Random) -> bytes:
    """Return `data` with bytes flipped, overwritten, removed, repeated or added, at one to four places."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4))):
        _CHANGES[dice.randrange(len(_CHANGES))](changed, dice)
    return bytes(changed)


def _change_somewhere(obj: Any, dice: Random) -> None:
    while isinstance(obj, dict | list) and obj:
        key = dice.choice(list(obj)) if isinstance(obj, dict) else dice.randrange(len(obj))
        if not isinstance(obj[key], dict | list) or dice.random() < 0.15:
            _change_item(obj, key, dice)
            return
        obj = obj[key]
    _add_item(obj, dice)


def _change_item(parent: Any, key: Any, dice: Random) -> None:
    kind = dice.randrange(12)
    if kind < 6:
        parent[key] = _other_value(parent[key], dice)
    elif kind == 6:
        del parent[key]
    elif kind == 7:
        parent[key] = dice.choice(([], {}, None, [parent[key]], {"x": parent[key]}, str(parent[key])))
    elif kind == 8:
        other = dice.choice(list(parent)) if isinstance(parent, dict) else dice.randrange(len(parent))
        parent[key], parent[other] = parent[other], parent[key]
    elif kind == 9 and isinstance(parent, dict):
        parent[dice.choice(KEYS)] = parent.pop(key)
    else:
        _add_item(parent, dice, copy.deepcopy(parent[key]))


def _add_item(parent: Any, dice: Random, value: Any = None) -> None:
    if isinstance(parent, dict):
        parent[dice.choice(KEYS)] = value
    elif isinstance(parent, list):
        parent.insert(dice.randrange(len(parent) + 1), value)


def _other_value(value: Any, dice: Random) -> Any:
    if isinstance(value, int) and dice.random() < 0.6:
        return value + dice.choice((-1, 1, -8, 8, value, -2 * value, 2**32, dice.randrange(1000)))
    if isinstance(value, str) and dice.random() < 0.5:
        at = dice.randrange(len(value) + 1)
        return value[:at] + dice.choice(("", "", "/", "..", "\x00", "0", "é", value)) + value[at + dice.randrange(3) :]
    return dice.choice(NUMBERS if dice.random() < 0.4 else TEXTS)


def _with_bomb(data: bytes, dice: Random) -> bytes:
    """Replace a value by text that no JSON writer produces."""
    colons = [at for at, byte in enumerate(data) if byte == 0x3A]
    begin = dice.choice(colons) + 1 if colons else 0
    ends = [at for at in (data.find(mark, begin) for mark in (b",", b"}", b"]")) if at >= 0]
    return data[:begin] + dice.choice(BOMBS) + data[min(ends, default=len(data)) :]


def _flip(data: bytearray, dice: Random) -> None:
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _overwrite(data: bytearray, dice: Random) -> None:
    if data:
        data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))


def _set_number(data: bytearray, dice: Random) -> None:
    """Overwrite a little-endian number, as in lengths, counts and offsets."""
    if len(data) >= 4:
        aligned = dice.random() < 0.5
        at = dice.randrange(len(data) // 4) * 4 if aligned else dice.randrange(len(data) - 3)
        near = int.from_bytes(data[at : at + 4], "little") + dice.choice((-8, -4, -1, 1, 4, 8))
        number = dice.choice((near, len(data), len(data) - 1, dice.choice(SMALL_OR_EDGE), dice.choice(SMALL_OR_EDGE)))
        data[at : at + 4] = (number % 2**32).to_bytes(4, "little")


def _cut(data: bytearray, dice: Random) -> None:
    del data[dice.randrange(len(data) + 1) :]


def _remove(data: bytearray, dice: Random) -> None:
    at = dice.randrange(len(data) + 1)
    del data[at : at + dice.choice((1, 1, 4, 16))]


def _repeat(data: bytearray, dice: Random) -> None:
    at, to = dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)
    data[to:to] = data[at : at + dice.choice((1, 4, 16, 64))]


def _extend(data: bytearray, dice: Random) -> None:
    data += dice.randbytes(dice.choice((1, 4, 64)))


def _blank(data: bytearray, dice: Random) -> None:
    at, size = dice.randrange(len(data) + 1), dice.choice((4, 16, 64))
    data[at : at + size] = bytes(len(data[at : at + size]))


_CHANGES = (_flip, _flip, _overwrite, _set_number, _set_number, _set_number, _cut, _remove, _repeat, _extend, _blank)
