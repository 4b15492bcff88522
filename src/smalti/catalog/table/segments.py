"""Segments: the shard table of a large version in files of `SEGMENT_SHARDS` shards each, which versions share.

Segment i has the shards [i * S, (i + 1) * S), so that an append replaces the last one only. A version's header names a
list of segments; the list has the facts that most operations need (shards, samples, bytes, splits, names), so that they
load no segment, or few. The version's digest is computed over the digests of the segments (`smalti.catalog.digest`),
and its scheme, with S, is in the header. Everything is pinned from there: the header has the SHA-256 of the list, the
list that of each segment. What a segment has is compared with its facts when it is loaded.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.catalog.table.arrow import emit_joined, load_content, opened_bytes
from smalti.catalog.table.rows import NAMES
from smalti.catalog.table.segment_list import Segment, SegmentList, SplitFacts, segment_shards_of
from smalti.catalog.table.shard_table import (
    ShardRows,
    ShardTable,
    TableContent,
    check_shards,
    hashes_of,
)
from smalti.errors import CatalogError, IndexFileError, StoreNotFound
from smalti.format import Schema, ShardInfo
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TABLE_SHARDS = 10_000
"""A version of up to so many shards has a single table."""
SEGMENT_SHARDS = 8192
"""Shards of a segment: 2 MB, which are written again by an append of one shard."""
MAX_LIST_BYTES = 64 << 20
"""About 10^9 shards."""
_PARALLEL_LOADS = 2
"""Threads that check mapped files, which takes processors alone."""
_PARALLEL_FETCHES = 16
_MAX_MAPPED = 256
"""Segments that are mapped at once, each of which takes a file descriptor; the others are in memory."""
_LAST_NAME = "\U0010ffff"


@dataclass(eq=False)
class SegmentFile:
    """A segment whose shards are loaded on demand."""

    facts: Segment
    store: Store | None = None
    """The store that has it; None if this process made it, and `loaded` is its content."""
    loaded: TableContent | None = None

    def load(self, columns: Mapping[str, str] | None = None, *, in_memory: bool = False) -> TableContent:
        """Return the content, which is compared with the facts and the columns of the version.

        Without `in_memory`, it is a mapped file, which takes a file descriptor.

        Raises:
            IndexFileError: the file is missing, was changed, or contradicts the list.
        """
        if self.loaded is not None:
            return self.loaded
        facts = self.facts
        if self.store is None:
            raise IndexFileError(f"segment {facts.key} has neither content nor store")
        where = self.store.locate(facts.key)
        try:
            found = load_content(
                self.store,
                facts.key,
                sha256=facts.sha256,
                num_bytes=facts.file_bytes,
                checks_names=False,
                in_memory=in_memory,
            )
        except StoreNotFound as error:
            raise IndexFileError(f"the segment {where} of the shard table is gone", key=facts.key) from error
        splits = tuple(sorted(name for name in facts.splits if name))
        has = found.size, found.num_samples, found.num_bytes, found.partitions
        if has != (facts.shards, facts.rows, facts.num_bytes, splits):
            raise IndexFileError(
                f"segment {where} has shards, samples, bytes and splits {has}; the list of segments says "
                f"{(facts.shards, facts.rows, facts.num_bytes, splits)}",
                key=facts.key,
            )
        _check_columns(found, columns, where)
        found.release()
        return found


def _check_columns(content: TableContent, columns: Mapping[str, str] | None, where: str) -> None:
    for kind in content.kind_shards() if columns is not None else ():
        if kind.schema.columns() != columns:
            raise IndexFileError(
                f"segment {where} has shards with columns {kind.schema.columns()}, its version has "
                f"{dict(columns or {})}"
            )


def facts_of(content: TableContent, known: Segment) -> Segment:
    """Return the facts of these shards, with key, digest and bytes of the file as known."""
    return replace(
        known,
        shards=content.size,
        rows=content.num_samples,
        num_bytes=content.num_bytes,
        splits=_splits_of(content),
    )


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


@dataclass(eq=False)
class SegmentedContent(ShardRows):
    """The shards of all segments. They stay loaded once columns of all shards were read."""

    segment_shards: int
    files: tuple[SegmentFile, ...]
    columns: Mapping[str, str] | None = None
    """Columns of the version, by which loaded segments are checked; None before they are known."""
    _recent: tuple[int, TableContent] | None = field(default=None, repr=False)
    """The segment that was read last, if it does not stay loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.segment_shards, self.files, self.columns)

    def __post_init__(self) -> None:
        self._ends = list(accumulate(each.facts.shards for each in self.files))

    @property
    def listed(self) -> SegmentList:
        """The list of segments."""
        return SegmentList(self.segment_shards, tuple(each.facts for each in self.files))

    @property
    def size(self) -> int:
        """Number of shards."""
        return self._ends[-1] if self._ends else 0

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return sum(each.facts.rows for each in self.files)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards as stored."""
        return sum(each.facts.num_bytes for each in self.files)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted."""
        return tuple(sorted({name for each in self.files for name in each.facts.splits if name}))

    def samples_of_split(self, name: str) -> int:
        """Return the number of samples of a split."""
        return sum(each.facts.splits[name].rows for each in self.files if name in each.facts.splits)

    def contents(self) -> Iterator[TableContent]:
        """Yield the contents of all segments, in order; they stay loaded."""
        for content in self._all():
            yield from content.contents()

    def read(self, begin: int, end: int) -> list[ShardInfo]:
        """Return the shards of rows [begin, end).

        Raises:
            IndexFileError: a segment is missing, was changed, or a row is invalid.
        """
        spans = self.spans(begin, end)
        return [shard for number, first, last in spans for shard in self.content_of(number).read(first, last)]

    def content_of(self, number: int) -> TableContent:
        """Return the content of one segment, loaded if it is not."""
        file, recent = self.files[number], self._recent
        if file.loaded is not None:
            return file.loaded
        if recent is not None and recent[0] == number:
            return recent[1]
        content = file.load(self.columns)
        self._recent = number, content
        return content

    def _all(self) -> list[TableContent]:
        """Load the segments that are not loaded yet, in parallel, and return all."""
        missing = [each for each in self.files if each.loaded is None]
        if missing:
            store, key = missing[0].store, missing[0].facts.key
            is_local = store is not None and store.local_path(key) is not None
            threads = _PARALLEL_LOADS if is_local else _PARALLEL_FETCHES
            in_memory = len(missing) > _MAX_MAPPED
            with ThreadPoolExecutor(min(threads, len(missing)), thread_name_prefix="smalti-segment") as pool:
                contents = pool.map(lambda each: each.load(self.columns, in_memory=in_memory), missing)
                for file, content in zip(missing, contents, strict=True):
                    file.loaded = content
        return [each.load() for each in self.files]

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield number, first and last row of the segments that have rows [begin, end)."""
        while begin < min(end, self.size):
            number = bisect_right(self._ends, begin)
            start = self._ends[number] - self.files[number].facts.shards
            last = min(end, self._ends[number])
            yield number, begin - start, last - start
            begin = last


def segments_in(shards: Sequence[ShardInfo]) -> SegmentedContent | None:
    """Return the segments of a whole segmented table; None for other shards."""
    is_segmented = isinstance(shards, ShardTable) and isinstance(shards.content, SegmentedContent) and shards.is_whole
    return shards.content if is_segmented and isinstance(shards, ShardTable) else None  # type: ignore[return-value]


def samples_of_split(shards: Sequence[ShardInfo], split: str) -> int:
    """Return the number of samples of a split; of segments, without loading them."""
    content = segments_in(shards)
    if content is not None:
        return content.samples_of_split(split)
    if isinstance(shards, ShardTable):
        return shards.of_partition(split).num_samples
    return sum(shard.samples for shard in shards if shard.partition == split)


def tables_in(shards: Sequence[ShardInfo]) -> Iterator[tuple[str, Sequence[ShardInfo]]]:
    """Yield the SHA-256 and the shards of each segment; for other shards, "" and all of them.

    Each segment is loaded when its shards are accessed, and not kept.
    """
    content = segments_in(shards)
    if content is None:
        yield "", shards
        return
    for file in content.files:
        part = SegmentedContent(content.segment_shards, (replace(file),), content.columns)
        yield file.facts.sha256, ShardTable(part)


def shards_only_in(shards: Sequence[ShardInfo], others: Sequence[ShardInfo]) -> tuple[ShardInfo, ...]:
    """Return the shards that are not among the others. Segments that both have are not loaded."""
    if not (isinstance(shards, ShardTable) and isinstance(others, ShardTable)):
        known = {shard.raw.basename: shard for shard in others}
        return tuple(shard for shard in shards if known.get(shard.raw.basename) != shard)
    own, other = (dict(tables_in(each)) for each in (shards, others))
    if "" not in own and "" not in other:  # each shard is listed once, so that one in a common segment is in no other
        common = own.keys() & other.keys()
        own, other = ({key: each[key] for key in each if key not in common} for each in (own, other))
    # Compared by hash: as objects, a million rows take a gigabyte.
    known_hashes = [np.zeros(0, np.uint64), *(table.content_hashes() for table in _taken(other))]
    wanted = np.unique(np.concatenate(known_hashes))
    found: list[ShardInfo] = []
    for table in _taken(own):
        rows = np.flatnonzero(~np.isin(table.content_hashes(), wanted))
        found += (table[row] for row in rows.tolist())
    return tuple(found)


def _taken(parts: dict[str, Sequence[ShardInfo]]) -> Iterator[ShardTable]:
    """Yield the tables, each removed from `parts`, so that the segment that it has loaded goes with it."""
    for key in list(parts):
        table = parts.pop(key)
        if isinstance(table, ShardTable):
            yield table


def load_segments(
    store: Store, key: str, *, sha256: str, scheme: str, columns: Mapping[str, str]
) -> ShardTable:  # fmt: skip
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
    listed = SegmentList.parse(data, where=where)
    if segment_shards_of(scheme) != listed.segment_shards:
        raise IndexFileError(
            f"{where} has segments of {listed.segment_shards} shards; its header names the digest scheme {scheme!r}",
            key=key,
        )
    files = tuple(SegmentFile(each, store) for each in listed.segments)
    return ShardTable(SegmentedContent(listed.segment_shards, files, columns))


def joined_table(parts: Iterable[Sequence[ShardInfo]], count: int) -> ShardTable:
    """Return the shards of all parts, `count` in number, as one table, in segments if there are many.

    No shards are created of parts that are tables.

    Raises:
        IndexFileError, CatalogError: two shards have a file name in common, or one is invalid.
    """
    if count > MAX_TABLE_SHARDS:
        return segmented(parts)
    return ShardTable(opened_bytes(emit_joined(list(parts))))


def segmented(
    parts: Iterable[Sequence[ShardInfo]],
    *,
    after: SegmentedContent | None = None,
    schema: Schema | None = None,
    size: int | None = None,
) -> ShardTable:
    """Return the shards of all parts in segments, after those of another table if it is given.

    Full segments of that table are used again, without loading them.

    Raises:
        SchemaError: a new shard has another schema than `schema`, if it is given.
        IndexFileError, CatalogError: two shards have a file name in common, or one is invalid.
    """
    size = after.segment_shards if after is not None else size or SEGMENT_SHARDS
    kept = () if after is None else tuple(file for file in after.files if file.facts.shards == size)
    rest = () if after is None else (ShardTable(SegmentedContent(size, (file,))) for file in after.files[len(kept) :])
    groups = enumerate(_groups((*rest, *parts), size))
    fresh = [made_segment(emit_joined(group), in_memory=number >= _MAX_MAPPED) for number, group in groups]
    for file in fresh:
        if schema is not None:
            check_shards(file.load().kind_shards(), schema)
    old_rows = sum(file.facts.shards for file in after.files[len(kept) :]) if after is not None else 0
    check_unique(kept, fresh, old_rows)
    return ShardTable(SegmentedContent(size, (*kept, *fresh), None if after is None else after.columns))


def _groups(parts: Iterable[Sequence[ShardInfo]], size: int) -> Iterator[list[Sequence[ShardInfo]]]:
    """Yield parts and pieces of parts with `size` shards together, the last ones with fewer."""
    group: list[Sequence[ShardInfo]] = []
    count = 0
    for part in parts:
        place = 0
        while place < len(part):
            taken = part[place : place + size - count]
            group.append(_file_table(taken))
            place, count = place + len(taken), count + len(taken)
            if count == size:
                yield group
                group, count = [], 0
    if group:
        yield group


def _file_table(shards: Sequence[ShardInfo]) -> Sequence[ShardInfo]:
    """Return the shards as rows of a single file where they are rows of one segment, whose columns can be joined."""
    rows = shards.rows if isinstance(shards, ShardTable) and shards.is_range else None
    if isinstance(shards, ShardTable) and isinstance(shards.content, SegmentedContent) and isinstance(rows, range):
        spans = list(shards.content.spans(rows.start, rows.stop))
        if len(spans) == 1:
            number, first, last = spans[0]
            return ShardTable(shards.content.content_of(number), range(first, last))
    return shards


def made_segment(data: bytes, *, in_memory: bool) -> SegmentFile:
    """Return the segment of an Arrow file of shards that this process created; it has neither key nor digest yet.

    Its bytes are kept in a temporary file, or `in_memory`, where those of a million shards take 260 MB.

    Raises:
        IndexFileError: two shards have a file name in common, or one is invalid.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    content = opened_bytes(data, in_memory=in_memory)
    known = Segment("", sha256, len(data), "", 0, 0, 0, {})
    made = SegmentFile(facts_of(content, known), None, content)
    content.release()
    return made


def check_unique(kept: Sequence[SegmentFile], fresh: Sequence[SegmentFile], old_rows: int) -> None:
    """Check that no file name is in two segments: in a new one and another one.

    `old_rows` is the number of shards at the begin of `fresh` that were in the table before, with those of `kept`. Only
    segments whose ranges of names overlap are compared: names of a writer begin with the time of its write.

    Raises:
        CatalogError: a file is listed twice.
    """
    splits = [
        _splits_of(file.load(), old_rows) if number == 0 else file.facts.splits for number, file in enumerate(fresh)
    ]
    added = sorted((each.first, each.last) for found in splits for each in found.values())
    highest = list(accumulate((last for _, last in added), max))

    def overlaps(file: SegmentFile) -> bool:
        """Return whether the range of one of its splits overlaps one of those in `added`, which are sorted."""
        begun = ((each.first, bisect_right(added, (each.last, _LAST_NAME))) for each in file.facts.splits.values())
        return any(count and highest[count - 1] >= first for first, count in begun)

    own = sorted((each.first, each.last) for file in fresh for each in file.facts.splits.values())
    ends = accumulate((last for _, last in own), max)
    compared = [file for file in kept if overlaps(file)]
    if compared or any(first <= end for (first, _), end in zip(own[1:], ends, strict=False)):
        _compare_names((*compared, *fresh))


def _compare_names(files: Iterable[SegmentFile]) -> None:
    """Check that no file name is in two of these segments, which are loaded one after the other."""
    files = list(files)
    known = np.sort(np.concatenate([hashes_of(names) for file in files for names in _names_in(file)]))
    doubled = set(known[1:][known[1:] == known[:-1]].tolist())
    seen: set[str] = set()
    for names in (names for file in files for names in _names_in(file)) if doubled else ():
        for name in names.filter(np.isin(hashes_of(names), list(doubled))).to_pylist():
            if name in seen:
                raise CatalogError(f"file {name} is listed 2 times; its samples would be doubled", shard=name)
            seen.add(name)


def _names_in(file: SegmentFile) -> Iterator["pa.ChunkedArray"]:
    """Yield the names of each kind of file in a segment."""
    for column in NAMES:
        yield file.load().texts(column).drop_null()
