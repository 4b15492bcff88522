"""Samples whose content follows from their set, its write and their id; sets of them; and the check of a batch."""

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smalti.writer import MDSWriter
from tests.text_writers import JSONWriter

COLUMNS = {"id": "int", "text": "str"}
_FEW_BYTES, _MANY_BYTES = 100, 1_500
_LARGE_EVERY, _LARGE_BYTES = 61, 15_000


@dataclass(frozen=True)
class SetOf:
    """A shard set: what it is called, how many samples it has, and how they lie in shards."""

    name: str
    count: int
    size_limit: int
    compression: str | None = None
    is_text: bool = False


def text_of(name: str, write: int, number: int) -> str:
    """The text of a sample: who it is, and characters that follow from it; a few are much longer than the others."""
    who = f"{name}/{write}/{number}/"
    length = _FEW_BYTES + zlib.crc32(who.encode()) % _MANY_BYTES
    if number % _LARGE_EVERY == 17:
        length += _LARGE_BYTES
    return who + hashlib.shake_128(who.encode()).hexdigest(length // 2)


def write_set(of: SetOf, out: str, *, write: int = 1, **options: Any) -> None:
    """Writes the set, or its next version, to a folder or a URL."""
    kind = JSONWriter if of.is_text else MDSWriter
    told = {"size_limit": of.size_limit, "compression": of.compression, "metadata": {"write": write}, **options}
    with kind(out=out, columns=COLUMNS, **told) as writer:
        for number in range(of.count):
            writer.write({"id": number, "text": text_of(of.name, write, number)})


class Expected:
    """What a dataset's batches must hold.

    Args:
        streams: Name and samples of each stream, in their order.
        write: Which write of the sets is read.
    """

    def __init__(self, streams: Sequence[tuple[str, int]], write: int) -> None:
        self._streams, self._write = streams, write

    def problems(self, batch: Mapping[str, Any]) -> list[str]:
        """What is wrong with a batch; nothing, if every sample is to the letter what its place in the data says."""
        found = []
        ids = [int(number) for number in batch["_sample_id"]]
        if not len(ids) == len(batch["text"]) == len(batch["id"]):
            return [f"columns of different lengths: {len(ids)}, {len(batch['text'])}, {len(batch['id'])}"]
        for sample_id, number, text in zip(ids, batch["id"], batch["text"], strict=True):
            name, own = self._place(sample_id)
            if int(number) != own:
                found.append(f"sample {sample_id} ({name} {own}) has the id {int(number)}")
            if text != text_of(name, self._write, own):
                found.append(f"sample {sample_id} ({name} {own}) has another text than was written: {text[:40]!r}...")
        return found

    def _place(self, sample_id: int) -> tuple[str, int]:
        before = 0
        for name, count in self._streams:
            if before <= sample_id < before + count:
                return name, sample_id - before
            before += count
        return "no stream", sample_id
