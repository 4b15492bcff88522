"""Damaged MDS shards, and the guarantees about every value that is read from one.

The oracle is a second, plain reader of the container (not of the encodings) that is written from the description of
the format: where it finds a sample, the library must give that sample, and where it finds none, a typed error.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from smalti.errors import ChecksumMismatch, FormatError
from smalti.format import Shard, ShardInfo, verify_file
from tests.hostile.files import scratch_files
from tests.hostile.mutations import mutate_bytes
from tests.hostile.shard_seeds import Whole, whole_shards


@dataclass(frozen=True)
class Damaged:
    """A damaged shard file and the index entry that declares its size."""

    whole: Whole
    info: ShardInfo
    """Declares the damaged size, and no hash, as a hostile index would."""
    data: bytes


class Shards:
    """MDS shard files, damaged anywhere, or in the table of offsets or the lengths in front of a sample."""

    name = "shard"

    def __init__(self, *, verify: Callable[..., None] = verify_file) -> None:
        self._verify = verify

    def make(self, dice: Random) -> Damaged:
        """Return one shard with one to four changes."""
        whole = dice.choice(whole_shards())
        data = whole.files[0]
        table = 8 + 4 * whole.info.samples
        chance = dice.random()
        if chance < 0.15:
            data = mutate_bytes(data[:table], dice)[:table].ljust(table, b"\0") + data[table:]
        elif chance < 0.4:
            begin = int.from_bytes(data[4:8], "little")
            data = data[:begin] + mutate_bytes(data[begin:], dice)
        else:
            data = mutate_bytes(data, dice)
        if dice.random() < 0.3 and len(data) > table:
            # The last offset is adapted to the length, so that damage after the table is reached.
            data = data[: table - 4] + len(data).to_bytes(4, "little") + data[table:]
        samples = dice.choice((0, 1, 2, 4, 2**20)) if dice.random() < 0.05 else whole.info.samples
        raw = replace(whole.info.raw, num_bytes=len(data), hashes={})
        return Damaged(whole, replace(whole.info, samples=samples, raw=raw, hash_names=()), data)

    def check(self, case: Damaged) -> str:
        """Expect a refusal if hashes are declared; without them the values of the plain reader, or a typed error."""
        with scratch_files([case.data]) as (path,):
            self._check_hashes(case, path)
            try:
                shard = Shard.open(path, case.info)
            except FormatError:
                return "refused at open"
            try:
                good = [_check_sample(shard, case, number) for number in range(len(shard))]
                _check_batch(shard, case, [number for number, is_good in enumerate(good) if is_good])
                if not all(good):
                    _check_bad_batch(shard, case)
            finally:
                shard.close()
        return "accepted" if all(good) else "refused at a sample"

    def _check_hashes(self, case: Damaged, path: Path) -> None:
        if case.data == case.whole.files[0]:
            return
        honest = case.whole.info.raw
        for info in (honest, replace(honest, num_bytes=len(case.data))):
            try:
                self._verify(path, info, what="shard")
            except ChecksumMismatch:
                continue
            raise AssertionError("damaged bytes were accepted against a declared hash")

    def dump(self, case: Damaged) -> bytes:
        """Return the file."""
        return case.data


def plain_read(data: bytes, info: ShardInfo, number: int) -> list[bytes] | None:
    """Return the stored bytes of each column of a sample; None if the sample is shorter than they are."""
    at = 4 + 4 * number
    begin, end = (int.from_bytes(data[i : i + 4], "little") for i in (at, at + 4))
    place = begin + 4 * info.schema.sizes.count(None)
    if place > end:
        return None
    lengths = iter(int.from_bytes(data[i : i + 4], "little") for i in range(begin, place, 4))
    columns = []
    for size in info.schema.sizes:
        after = place + (next(lengths) if size is None else size)
        if after > end:
            return None
        columns.append(data[place:after])
        place = after
    return columns


def _decoded(case: Damaged, number: int) -> dict[str, Any] | None:
    stored = plain_read(case.data, case.info, number)
    if stored is None:
        return None
    schema = case.info.schema
    try:
        return {
            name: codec.decode(data) for name, codec, data in zip(schema.names, schema.codecs(), stored, strict=True)
        }
    except (ValueError, ArithmeticError, RecursionError):
        return None


def _check_sample(shard: Shard, case: Damaged, number: int) -> bool:
    expected = _decoded(case, number)
    try:
        found = shard[number]
    except FormatError:
        assert expected is None, f"sample {number} is there and was refused"
        return False
    assert expected is not None, f"sample {number} is damaged and was given out"
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert same(value, expected[name]), f"sample {number}, column {name}: another value"
    return True


def _check_batch(shard: Shard, case: Damaged, numbers: list[int]) -> None:
    """Read the samples that can be read one by one as a batch."""
    batch = shard.batch(np.array(numbers[::-1], np.int64))
    codecs = case.info.schema.codecs()
    stored = [plain_read(case.data, case.info, number) or [] for number in numbers[::-1]]
    for column, (name, codec) in enumerate(zip(case.info.schema.names, codecs, strict=True)):
        assert len(batch[name]) == len(numbers)
        for value, row in zip(batch[name], stored, strict=True):
            expected = row[column] if codec.is_image else codec.decode(row[column])
            assert same(value, expected), f"column {name} of a batch: another value"


def _check_bad_batch(shard: Shard, case: Damaged) -> None:
    """Expect a typed error for a batch with a damaged sample; undecoded images may pass."""
    try:
        shard.batch(np.arange(len(shard)))
    except FormatError:
        return
    assert any(codec.is_image for codec in case.info.schema.codecs()), "a damaged sample was given out in a batch"


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal to the last bit, as far as a consumer can see."""
    if isinstance(a, Image.Image):
        return bool(a.size == b.size and a.mode == b.mode)
    if isinstance(a, np.ndarray | np.generic):
        b = np.asarray(b, a.dtype)
        return bool(a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)
