"""The list of a version's segments, with the facts that save loading them; and the digest over it.

A segment is a part of a shard table in a file of its own (`smalti.catalog.table.segments`).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from smalti.errors import IndexFileError
from smalti.format import load_strict
from smalti.format.index import check_basename

LIST_FORMAT = 1
_SCHEME = re.compile(r"(?:content-)?segments-([1-9][0-9]{0,8})")
_SHA256 = re.compile("[0-9a-f]{64}")


def scheme_of(segment_shards: int) -> str:
    """Return the name of the digest scheme of earlier versions in segments of this size."""
    return f"segments-{segment_shards}"


def segment_shards_of(scheme: str) -> int | None:
    """Return the number of shards of a segment; None if this is not the name of a scheme of versions in segments."""
    match = _SCHEME.fullmatch(scheme)
    return int(match[1]) if match else None


class SplitFacts(NamedTuple):
    """The shards of one split in a segment."""

    shards: int
    rows: int
    first: str
    """The lowest name of a file."""
    last: str
    """The highest name of a file."""


@dataclass(frozen=True)
class Segment:
    """The facts of a segment, as the list has them."""

    key: str
    sha256: str
    file_bytes: int
    """Bytes of the segment's own file."""
    digest: str
    """Digest of its shards: by the scheme of the version, `digest_of_shards` or `digest_of`."""
    shards: int
    rows: int
    num_bytes: int
    """Bytes of the shards as stored."""
    splits: Mapping[str, SplitFacts]
    """By name; "" for shards without split."""

    @classmethod
    def from_json(cls, entry: Any, *, where: str) -> "Segment":
        """Parse and check an entry of a list.

        Raises:
            IndexFileError: a field is missing or invalid.
        """
        try:
            splits = {str(name): SplitFacts(*facts) for name, facts in entry["splits"].items()}
            found = cls(**{**{name: entry[name] for name in cls.__dataclass_fields__}, "splits": splits})
            numbers = [found.file_bytes, found.shards, found.rows, found.num_bytes]
            numbers += [number for each in splits.values() for number in (each.shards, each.rows)]
            names = [name for each in splits.values() for name in (each.first, each.last)]
            is_valid = (
                all(type(number) is int and number >= 0 for number in numbers)
                and all(_SHA256.fullmatch(text) for text in (found.sha256, found.digest))
                and all(isinstance(name, str) for name in names)
                and sum(each.shards for each in splits.values()) == found.shards
                and sum(each.rows for each in splits.values()) == found.rows
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise IndexFileError(f"{where}: an entry cannot be understood: {str(entry)[:200]}") from error
        if not is_valid:
            raise IndexFileError(f"{where}: an entry has invalid facts: {str(entry)[:200]}")
        check_basename(found.key, where=where)
        return found


@dataclass(frozen=True)
class SegmentList:
    """The segments of a version, in order."""

    segment_shards: int
    """Shards of each segment but the last, which may have fewer."""
    segments: tuple[Segment, ...]

    @property
    def digest(self) -> str:
        """Digest of an earlier version, whose scheme is `scheme_of`: SHA-256, hex, over the digests of the segments."""
        lines = [f"smalti-manifest-2 {self.segment_shards}", *(each.digest for each in self.segments)]
        return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()

    def emit(self) -> bytes:
        """Return the list as JSON bytes."""
        entries = [vars(segment) for segment in self.segments]
        return json.dumps(
            {"smalti": LIST_FORMAT, "segment_shards": self.segment_shards, "segments": entries}, sort_keys=True
        ).encode()

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> "SegmentList":
        """Parse and check a list.

        Raises:
            IndexFileError: it is not of the form that `emit` returns, or from a newer Smalti.
        """
        top = load_strict(data, where=where)
        if not isinstance(top, dict) or top.get("smalti") != LIST_FORMAT:
            raise IndexFileError(f"{where} is no list of segments of format {LIST_FORMAT}: update smalti", key=where)
        size, entries = top.get("segment_shards"), top.get("segments")
        if type(size) is not int or size < 1 or not isinstance(entries, list):
            raise IndexFileError(f"{where}: expected a list of segments and their size, found {size!r:.40}", key=where)
        found = cls(size, tuple(Segment.from_json(entry, where=where) for entry in entries))
        sizes = [each.shards for each in found.segments]
        if any(count != size for count in sizes[:-1]) or any(not 1 <= count <= size for count in sizes[-1:]):
            raise IndexFileError(f"{where}: its segments have {sizes[:4]!r}... shards, expected {size} each", key=where)
        return found
