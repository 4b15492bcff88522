"""Damaged JSONL, CSV, TSV and XSV shards, whose lines and table of offsets are two files that may contradict."""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np

from smalti.errors import ChecksumMismatch, FormatError
from smalti.format import ShardInfo, ShardOptions, verify_file
from smalti.format.reading.joining import open_shard
from smalti.format.text import TextLayout, text_schema
from tests.hostile.files import scratch_files
from tests.hostile.mutations import mutate_bytes
from tests.hostile.shard_seeds import Whole
from tests.text_writers import TextBuilder

_LAYOUTS = (("json", "\n", None), ("csv", "\n", ","), ("tsv", "\r\n", "\t"), ("xsv", "\n", "::"))


@dataclass(frozen=True)
class DamagedPair:
    """A data file and its meta file, damaged, and the index entry that declares their sizes."""

    whole: Whole
    info: ShardInfo
    files: tuple[bytes, bytes]


class TextShards:
    """Text shards with damage in the lines, in the meta file, or in both."""

    name = "text-shard"

    def make(self, dice: Random) -> DamagedPair:
        """Return one shard with one to four changes in one file or in both."""
        whole = dice.choice(whole_text_shards())
        data, meta = whole.files
        chance = dice.random()
        if chance < 0.6:
            data = _edit_text(data, dice) if dice.random() < 0.5 else mutate_bytes(data, dice)
        if chance > 0.5:
            meta = mutate_bytes(meta, dice)
        elif dice.random() < 0.6:
            # A table that fits the damaged lines as far as they can be found, so that their content is read.
            meta = _table_of(data, whole.info) + meta[8 + 4 * whole.info.samples :]
        samples = int.from_bytes(meta[:4], "little") if dice.random() < 0.5 else whole.info.samples
        info = replace(
            whole.info,
            samples=samples,
            raw=replace(whole.info.raw, num_bytes=len(data), hashes={}),
            meta=None if whole.info.meta is None else replace(whole.info.meta, num_bytes=len(meta), hashes={}),
            hash_names=(),
        )
        return DamagedPair(whole, info, (data, meta))

    def check(self, case: DamagedPair) -> str:
        """Expect a refusal if hashes are declared; without them the values of the plain reader, or a typed error."""
        with scratch_files(case.files) as paths:
            honest = case.whole.info.raw_files
            for path, data, original, info in zip(paths, case.files, case.whole.files, honest, strict=True):
                if data != original:
                    _check_refused(path, replace(info, num_bytes=len(data)))
            try:
                shard = open_shard(paths, case.info)
            except FormatError:
                return "refused at open"
            try:
                good = [_check_sample(shard, case, number) for number in range(len(shard))]
                _check_batches(shard, good)
            finally:
                shard.close()
        return "accepted" if all(good) else "refused at a sample"

    def dump(self, case: DamagedPair) -> bytes:
        """Return both files, one after the other, and their sizes."""
        return b"%d+%d\n" % tuple(map(len, case.files)) + b"".join(case.files)


@cache
def whole_text_shards() -> tuple[Whole, ...]:
    """Return one shard of three samples in every format."""
    schema = text_schema({"id": "int", "name": "str", "x": "float"})
    shards = []
    for kind, newline, separator in _LAYOUTS:
        builder = TextBuilder(TextLayout(kind, schema, newline, separator), ShardOptions(hashes=("xxh3_64",)))
        for number in range(3):
            builder.add({"id": 10**number, "name": "né" * number, "x": number / 3})
        (filled,) = builder.finish()
        built = filled.seal()
        shards.append(Whole(built.info, tuple(bytes(payload) for payload in built.payloads)))
    return tuple(shards)


def _edit_text(data: bytes, dice: Random) -> bytes:
    """Replace a value by one that a lax parser accepts."""
    odd = (b"1_0", b" 1", b"+1", b"1.0", b"1e5", b"1e999", b"NaN", b"Infinity", b"inf", b"nan", b"-0", b"0x1", b"true",
    b"null",
           b"", b"\xd9\xa3", b"9" * 30, b"9" * 5000, b'"1"', b'"\\ud800"', b"[[", b"{}", b"[" * 5000,
           b'{"id":' * 2000)  # fmt: skip
    parts = [at for at, byte in enumerate(data) if byte in b",\t:}\n"]
    begin = dice.choice(parts) + 1
    end = next((at for at in parts if at >= begin), len(data))
    return data[:begin] + dice.choice(odd) + data[end:]


def _table_of(data: bytes, info: ShardInfo) -> bytes:
    newline = (info.newline or "").encode()
    lines = data.split(newline)[:-1]
    first = 0 if info.format == "json" else 1
    ends = np.cumsum([0, *(len(line) + len(newline) for line in lines)])[first:]
    return max(0, len(ends) - 1).to_bytes(4, "little") + ends.astype("<u4").tobytes()


def _check_refused(path: Any, info: Any) -> None:
    try:
        verify_file(path, info, what="shard")
    except ChecksumMismatch:
        return
    raise AssertionError("damaged bytes were accepted against a declared hash")


def _check_sample(shard: Any, case: DamagedPair, number: int) -> bool:
    expected = plain_line(case, number)
    try:
        found = shard[number]
    except FormatError:
        return False
    assert expected is not None, f"sample {number} is damaged and was given out"
    assert repr(sorted(found.items())) == repr(sorted(expected.items())), f"sample {number}: another value"
    return True


def plain_line(case: DamagedPair, number: int) -> dict[str, Any] | None:
    """Parse a line in the simplest way; None if that finds no sample."""
    info, (data, meta) = case.info, case.files
    begin, end = (int.from_bytes(meta[at : at + 4], "little") for at in (4 + 4 * number, 8 + 4 * number))
    newline = (info.newline or "").encode()
    if not begin <= end <= len(data) or not data[begin:end].endswith(newline):
        return None
    columns = info.schema.columns()
    try:
        line = data[begin : end - len(newline)].decode()
        if info.format == "json":
            row = json.loads(line, parse_float=_finite)
        else:
            row = dict(zip(columns, line.split(info.separator), strict=True))
        if len(row) != len(columns):
            return None
        return {name: _plain_value(kind, row[name]) for name, kind in columns.items()}
    except (ValueError, ArithmeticError, KeyError, TypeError, RecursionError):
        return None


def _plain_value(kind: str, value: Any) -> Any:
    if kind == "float":
        return _finite(value) if isinstance(value, str) and "inf" not in value and "nan" not in value else float(value)
    return int(value) if kind == "int" else value


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number that 64 bits cannot hold")
    return value


def _check_batches(shard: Any, good: list[bool]) -> None:
    numbers = [number for number, is_good in enumerate(good) if is_good][::-1]
    batch = shard.batch(np.array(numbers, np.int64))
    for place, number in enumerate(numbers):
        for name, value in shard[number].items():
            assert batch[name][place] == value or value != value, f"sample {number} of a batch: another value"
    if not all(good):
        try:
            shard.batch(np.arange(len(good)))
        except FormatError:
            return
        raise AssertionError("a damaged sample was given out in a batch")
