"""Segments: the shard table of a large version in files of `SEGMENT_SHARDS` shards each, which versions share.

Segment i has the shards [i * S, (i + 1) * S), so that an append replaces the last one only. A version's header names a
list of segments; the list has the facts that most operations need (shards, samples, bytes, splits, names), so that they
load no segment, or few. The version's digest is computed over the digests of the segments (`smalti.catalog.digest`),
and its scheme, with S, is in the header. Everything is pinned from there: the header has the SHA-256 of the list, the
list that of each segment. What a segment has is compared with its facts when it is loaded.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.catalog.table import shard_table
from smalti.catalog.table.arrow import emit_table
from smalti.catalog.table.content import NAMES, TableContent, check_kinds, own_content
from smalti.catalog.table.shard_table import (
    Segment,
    ShardTable,
    SplitFacts,
    TableFile,
    TableFiles,
    facts_of,
    hashes_of,
    num_bytes_of,
    samples_of,
    segment_shards_of,
    segments_in,
)
from smalti.errors import CatalogError, IndexFileError
from smalti.format import Schema, ShardInfo, load_strict
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TABLE_SHARDS = 10_000
"""A version of up to so many shards has a single table."""
SEGMENT_SHARDS = 8192
"""Shards of a segment: 2 MB, which are written again by an append of one shard."""
LIST_FORMAT = 1
MAX_LIST_BYTES = 64 << 20
"""About 10^9 shards."""
_LAST_NAME = "\U0010ffff"


def tables_in(shards: Sequence[ShardInfo]) -> Iterator[tuple[str, Any]]:
    """Yield the SHA-256 and the shards of each segment, as a table; for other shards, "" and all of them.

    Each segment is loaded when its shards are accessed, and not kept.
    """
    content = segments_in(shards)
    if content is None:
        yield "", shards
        return
    for file, facts in zip(content.files, content.facts, strict=True):
        own = TableFile(facts, file.store, file.loaded)
        yield facts.sha256, ShardTable(TableFiles((own,), content.segment_shards, content.columns))


def shards_only_in(shards: Sequence[ShardInfo], others: Sequence[ShardInfo]) -> tuple[ShardInfo, ...]:
    """Return the shards that are not among the others. Segments that both have are not loaded."""
    if not (isinstance(shards, ShardTable) and isinstance(others, ShardTable)):
        known = {shard.raw.basename: shard for shard in others}
        return tuple(shard for shard in shards if known.get(shard.raw.basename) != shard)
    # Each shard is listed once, so that one in a common segment is in no other.
    own, other = ({facts.sha256 for facts in facts_of(table)} for table in (shards, others))
    common = own & other
    # Compared by hash: as objects, a million rows take a gigabyte.
    hashes = (table.content_hashes() for sha256, table in tables_in(others) if sha256 not in common)
    wanted = np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))
    added: list[ShardInfo] = []
    for sha256, table in tables_in(shards):
        if sha256 not in common:
            rows = np.flatnonzero(~np.isin(table.content_hashes(), wanted))
            added += (table[row] for row in rows.tolist())
    return tuple(added)


def load_segments(store: Store, key: str, *, sha256: str, scheme: str, columns: Mapping[str, str]) -> ShardTable:
    """Load the list of segments of a version with these columns, and return its shards.

    Raises:
        StoreNotFound: there is no such object.
        IndexFileError: it is too large, not the one that the header names, or of another scheme.
    """
    where = f"list of segments {store.locate(key)}"
    data = store.get_range(key, 0, MAX_LIST_BYTES + 1)
    found = hashlib.sha256(data).hexdigest()
    if len(data) > MAX_LIST_BYTES or found != sha256:
        raise IndexFileError(
            f"{where}: expected sha256 {sha256}, found {found} over {len(data)} bytes; the object was changed or cut",
            key=key,
        )
    segments = parse_list(data, where=where, store=store, columns=columns)
    if segment_shards_of(scheme) != segments.segment_shards:
        raise IndexFileError(
            f"{where} has segments of {segments.segment_shards} shards; its header names the digest scheme {scheme!r}",
            key=key,
        )
    return ShardTable(segments)


def parse_list(
    data: bytes, *, where: str, store: Store | None = None, columns: Mapping[str, str] | None = None
) -> TableFiles:
    """Parse and check a list; return the segments of a version with these columns, which the store has.

    Raises:
        IndexFileError: it is not of the form that `emit_list` returns, or from a newer Smalti.
    """
    top = load_strict(data, where=where)
    if not isinstance(top, dict) or top.get("smalti") != LIST_FORMAT:
        raise IndexFileError(f"{where} is no list of segments of format {LIST_FORMAT}: update smalti", key=where)
    size, entries = top.get("segment_shards"), top.get("segments")
    if type(size) is not int or size < 1 or not isinstance(entries, list):
        raise IndexFileError(f"{where}: expected a list of segments and their size, found {size!r:.40}", key=where)
    facts = [Segment.from_json(entry, where=where) for entry in entries]
    sizes = [each.shards for each in facts]
    if any(count != size for count in sizes[:-1]) or any(not 1 <= count <= size for count in sizes[-1:]):
        raise IndexFileError(f"{where}: its segments have {sizes[:4]!r}... shards, expected {size} each", key=where)
    return TableFiles(tuple(TableFile(each, store) for each in facts), size, columns)


def emit_list(segments: TableFiles) -> bytes:
    """Return the list of the segments as JSON bytes."""
    entries = [vars(facts) for facts in segments.facts]
    return json.dumps(
        {"smalti": LIST_FORMAT, "segment_shards": segments.segment_shards, "segments": entries}, sort_keys=True
    ).encode()


def digest_of_list(segments: TableFiles) -> str:
    """Return the digest of an earlier version: the SHA-256, hex, of the digests of its segments."""
    lines = [f"smalti-manifest-2 {segments.segment_shards}", *(facts.digest for facts in segments.facts)]
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def joined_table(parts: Iterable[Sequence[ShardInfo]], count: int) -> ShardTable:
    """Return the shards of all parts, `count` in number, as one table, in segments if there are many.

    No shards are created of parts that are tables.

    Raises:
        IndexFileError, CatalogError: two shards have a file name in common, or one is invalid.
    """
    if count > MAX_TABLE_SHARDS:
        return segmented(parts)
    return ShardTable.of(own_content(emit_table(*parts)))


def segmented(
    parts: Iterable[Sequence[ShardInfo]],
    *,
    after: TableFiles | None = None,
    schema: Schema | None = None,
    size: int | None = None,
) -> ShardTable:
    """Return the shards of all parts in segments, after those of another table in segments if it is given.

    Full segments of that table are used again, without loading them.

    Raises:
        SchemaError: a new shard has another schema than `schema`, if it is given.
        IndexFileError, CatalogError: two shards have a file name in common, or one is invalid.
    """
    before = () if after is None else after.files
    size = size or SEGMENT_SHARDS if after is None else after.segment_shards or SEGMENT_SHARDS
    kept = tuple(file for file in before if file.facts is not None and file.facts.shards == size)
    rest = [ShardTable(TableFiles((file,), size)) for file in before[len(kept) :]]
    fresh = []
    for number, group in enumerate(_groups((*rest, *parts), size)):
        content = own_content(emit_table(*group), in_memory=number >= shard_table.MAX_MAPPED)
        table = ShardTable.of(content)
        facts = Segment(
            key="",
            sha256=content.sha256,
            file_bytes=len(content.data),
            digest="",
            shards=len(table),
            rows=samples_of(table),
            num_bytes=num_bytes_of(table),
            splits=_splits_of(content),
        )
        if schema is not None:
            check_kinds(content.kinds(), schema)
        content.release()
        fresh.append(TableFile(facts, None, content))
    check_unique(kept, fresh, sum(map(len, rest)))
    return ShardTable(TableFiles((*kept, *fresh), size, None if after is None else after.columns))


def _groups(parts: Iterable[Sequence[ShardInfo]], size: int) -> Iterator[list[Sequence[ShardInfo]]]:
    """Yield parts and pieces of parts with `size` shards together, the last ones with fewer."""
    group: list[Sequence[ShardInfo]] = []
    count = 0
    for part in parts:
        place = 0
        while place < len(part):
            taken = part[place : place + size - count]
            group.append(taken)
            place, count = place + len(taken), count + len(taken)
            if count == size:
                yield group
                group, count = [], 0
    if group:
        yield group


def _splits_of(content: TableContent, begin: int = 0) -> dict[str, SplitFacts]:
    """Return the splits of the rows from `begin` on, with their facts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = content.columns.slice(begin)
    splits = rows.column("partition").cast(pa.string()).fill_null("")
    facts = {}
    for split in pc.unique(splits).to_pylist():
        chosen = rows.filter(pc.equal(splits, split))
        names = [chosen.column(name) for name in NAMES if chosen.column(name).null_count < len(chosen)]
        ends = [pc.min_max(column).as_py() for column in names]
        facts[split] = SplitFacts(
            len(chosen),
            pc.sum(chosen.column("samples")).as_py(),
            min(end["min"] for end in ends),
            max(end["max"] for end in ends),
        )
    return facts


def check_unique(kept: Sequence[TableFile], fresh: Sequence[TableFile], old_rows: int) -> None:
    """Check that no file name is in two segments: in a new one and another one.

    `old_rows` is the number of shards at the begin of `fresh` that were in the table before, with those of `kept`. Only
    segments whose ranges of names overlap are compared: names of a writer begin with the time of its write.

    Raises:
        CatalogError: a file is listed twice.
    """
    added = sorted(
        [each for file in fresh[1:] for each in _ranges(file)]
        + [(split.first, split.last) for file in fresh[:1] for split in _splits_of(file.load(), old_rows).values()]
    )
    highest = list(accumulate((last for _, last in added), max))
    own = sorted(each for file in fresh for each in _ranges(file))
    ends = accumulate((last for _, last in own), max)
    compared = []
    for file in kept:
        # Whether the range of one of its splits overlaps one of those in `added`, which are sorted.
        begun = ((first, bisect_right(added, (last, _LAST_NAME))) for first, last in _ranges(file))
        if any(count and highest[count - 1] >= first for first, count in begun):
            compared.append(file)
    if compared or any(first <= end for (first, _), end in zip(own[1:], ends, strict=False)):
        _compare_names((*compared, *fresh))


def _ranges(file: TableFile) -> list[tuple[str, str]]:
    """Return the lowest and the highest name of a file in each split of a segment."""
    return [] if file.facts is None else [(split.first, split.last) for split in file.facts.splits.values()]


def _compare_names(files: Sequence[TableFile]) -> None:
    """Check that no file name is in two of these segments, which are loaded one after the other."""

    def names_in_files() -> Iterator["pa.ChunkedArray"]:
        for file in files:
            table = ShardTable.of(file.load())
            yield from (table.texts(column).drop_null() for column in NAMES)

    known = np.sort(np.concatenate(list(map(hashes_of, names_in_files()))))
    doubled = set(known[1:][known[1:] == known[:-1]].tolist())
    seen: set[str] = set()
    for names in names_in_files() if doubled else ():
        for name in names.filter(np.isin(hashes_of(names), list(doubled))).to_pylist():
            if name in seen:
                raise CatalogError(f"file {name} is listed 2 times; its samples would be doubled", shard=name)
            seen.add(name)
