"""Damaged compressed files of every algorithm: the output is bounded by the size that the index declares."""

import bz2
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from random import Random

from smalti.errors import ChecksumMismatch, FormatError
from smalti.format import Compression, parse_compression
from smalti.format.hashing import compare_digests, digest_bytes
from tests.hostile.files import scratch_files
from tests.hostile.mutations import mutate_bytes
from tests.hostile.shard_seeds import whole_shards

ALGORITHMS = ("br:1", "bz2:1", "gz:1", "snappy", "zstd:1", "zstd:19")


@dataclass(frozen=True)
class Packed:
    """A damaged compressed file."""

    algorithm: str
    content: bytes
    """The content before the damage."""
    data: bytes
    limit: int


class PackedFiles:
    """Compressed shards with one to four changes, some with a declared size that is too small."""

    name = "packed"

    def __init__(self, *, unpack: Callable[..., int] = Compression.decompress_file) -> None:
        self._unpack = unpack

    def make(self, dice: Random) -> Packed:
        """Return one damaged file."""
        algorithm, content, data = dice.choice(_whole_files())
        limit = len(content) if dice.random() < 0.8 else dice.choice((0, 1, len(content) - 1, 2 * len(content)))
        return Packed(algorithm, content, mutate_bytes(data, dice), limit)

    def check(self, case: Packed) -> str:
        """Expect a refusal, or at most `limit` bytes; changed content must not match the declared hash."""
        compression = parse_compression(case.algorithm)
        assert compression is not None
        out = BytesIO()
        with scratch_files([case.data]) as (path,):
            try:
                total = self._unpack(compression, path, out, case.limit)
            except FormatError:
                assert len(out.getvalue()) <= case.limit, "more than the limit was written"
                return f"refused: {case.algorithm}"
        found = out.getvalue()
        assert total == len(found) <= case.limit, "more than the limit came out"
        if found != case.content:
            declared = digest_bytes(case.content, ["xxh3_64"])
            try:
                compare_digests(digest_bytes(found, declared), declared, what="shard")
            except ChecksumMismatch:
                return f"other content: {case.algorithm}"
            raise AssertionError("other content passed the declared hash")
        return f"same content: {case.algorithm}"

    def dump(self, case: Packed) -> bytes:
        """Return the file."""
        return case.data


@cache
def _whole_files() -> tuple[tuple[str, bytes, bytes], ...]:
    files = []
    for algorithm in ALGORITHMS:
        compression = parse_compression(algorithm)
        assert compression is not None
        for whole in whole_shards():
            content = whole.files[0]
            files.append((algorithm, content, compression.compress(content)))
    runs = bytes(200_000)  # compresses to nearly nothing, like a decompression bomb
    for algorithm in ALGORITHMS:
        compression = parse_compression(algorithm)
        assert compression is not None
        files.append((algorithm, runs, compression.compress(runs)))
    members = b"one" * 50, b"two" * 50
    files.append(("gz:1", b"".join(members), b"".join(map(gzip.compress, members))))
    files.append(("bz2:1", b"".join(members), b"".join(map(bz2.compress, members))))
    return tuple(files)
