"""Opening a version: which one is chosen, by number, by tag or as the newest, and its shards.

`open_version` reads single objects only, as a reader with few rights can. Nothing here writes to a store; only
`read_tags`, and the message for an unknown tag, list one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from smalti.catalog.digest import CONTENT, digest_of, digest_of_shards, is_content
from smalti.catalog.index import (
    LISTED,
    IndexSummary,
    decode_block_lists,
    decode_unlisted_hashes,
    peek_index,
)
from smalti.catalog.manifest import (
    FOLDER,
    INDEX,
    Header,
    Manifest,
    VersionInfo,
    digest_by,
    header_key,
    make_manifest,
    parse_json,
    read_header,
    read_manifest,
    shared_fields,
)
from smalti.catalog.table.shard_table import ShardTable, samples_of, segments_in
from smalti.errors import (
    ArgumentError,
    CatalogError,
    IndexFileError,
    StoreAuthError,
    StoreError,
    StoreNotFound,
    StoreTimeout,
    VersionNotFound,
)
from smalti.format import MAX_INDEX_BYTES, Schema, ShardInfo, load_strict
from smalti.format.index import shards_of
from smalti.storage import Place, Store, open_store
from smalti.storage.retry import begin_call

HEADER_TIMEOUT_SECONDS = 600.0
"""For a header that a thread reads; more than any store takes until it raises."""

TAGS = f"{FOLDER}/tags"
TAG_BYTES = 1 << 16
"""More than any tag has."""
_TAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_TAG_SUFFIX = ".json"
MAX_UNREADABLE = 8
"""Headers in a row that cannot be read, after which no more are looked for: a web server may answer to any name."""


@dataclass(frozen=True)
class Newest:
    """The state of a place: its newest version and its index file."""

    header: Header | None
    """The newest version; None when there is none."""
    index: IndexSummary | None
    """The summary of `index.json`; None when there is none."""
    unreadable: IndexFileError | None = None
    """The reason why a version after `header` cannot be read; None if there is no such version."""
    last: int = 0
    """The number of the last version, readable or not; 0 when there is none."""
    is_copy: bool = False
    """True if the index file names a version, and the place has no versions: its files were copied from elsewhere."""

    @property
    def extra(self) -> dict[str, Any] | None:
        """The value of Smalti's key in `index.json`; None when the file or the key is absent."""
        return None if self.index is None else self.index.extra

    @property
    def is_foreign(self) -> bool:
        """True if another program than Smalti wrote the index file."""
        return self.index is not None and self.extra is None and not self.index.is_empty

    @property
    def is_split_folder(self) -> bool:
        """True if this is the folder of one split of a Smalti set, which is opened like a plain MDS set."""
        return self.extra is not None and self.extra.get("split") is not None

    @property
    def is_unversioned(self) -> bool:
        """True for a new set of `smalti.compat.streaming`, whose first version is the write that replaces it."""
        return self.header is None and self.index is not None and self.extra is not None and not self.index.version

    @property
    def is_plain(self) -> bool:
        """True if the index file alone describes the set: there are no versions of it."""
        return self.header is None and self.index is not None and not self.index.is_empty


def find_newest(
    store: Store, *, lenient: bool = False, expected: int | None = None, skips_unreadable: bool = False
) -> Newest:
    """Find the newest version of the set at this place.

    The search starts at the version that `index.json` names, and continues with the following headers, because a
    publisher may have died before it replaced the index file. With `lenient`, a refused access to a following header
    counts as "does not exist" if the index file could be read: S3 without the right to list answers 403 for a missing
    key. `expected` is the version that is probably the newest: its header and the next one are requested together with
    the index file, which saves a round trip if it is. Nothing else depends on it.

    An index file that cannot be read does not matter if there are headers: it is only a copy. Neither do unreadable
    headers with a readable one after them; with `skips_unreadable`, neither do those after the newest readable one.

    Raises:
        IndexFileError: the newest version cannot be read, or the index file of a set without versions.
        CatalogError: the version that the index file names is missing, and older ones are there.
    """
    is_far = store.local_path(INDEX) is None
    early: dict[int, Future[Header]] = {}
    if expected is not None and is_far:
        early = {version: _read_early(store, version) for version in (expected, expected + 1)}
    index_fault: IndexFileError | None = None
    try:
        index = peek_index(store)
    except IndexFileError as error:
        index, index_fault = IndexSummary(None, is_empty=True), error
    found = Newest(None, index)
    if found.is_foreign or found.is_split_folder:
        return found
    start = 0 if index is None else index.version
    if start and is_far and start + 1 not in early:
        early[start + 1] = _read_early(store, start + 1)
    header, version, unreadable = _last_readable(store, start, early, extra=found.extra, lenient=lenient)
    if unreadable is not None and header is None and start > 1:  # the versions before the one in the index file
        header = _last_readable(store, 0, {}, extra=None, lenient=lenient, end=start)[0]
    if header is None and unreadable is None and index_fault is not None:
        raise index_fault
    if unreadable is not None and not skips_unreadable:
        raise unreadable
    is_copy = header is None and unreadable is None and start > 0
    if is_copy and start > 1 and store.exists(header_key(1)):
        raise CatalogError(
            f"{store.locate(INDEX)} says version {start}, and {header_key(start)} is not there, although older "
            f"versions are: restore it from a copy of the set, or open an older one, such as version={start - 1}",
            version=start,
        )
    return Newest(header, index, unreadable, version, is_copy)


def _last_readable(
    store: Store,
    start: int,
    early: dict[int, Future[Header]],
    *,
    extra: dict[str, Any] | None,
    lenient: bool,
    end: int | None = None,
) -> tuple[Header | None, int, IndexFileError | None]:
    """Read headers from version `start` on, up to the first that does not exist, or to `end`.

    Returns:
        The last header that can be read, the number of the last that exists, and why it cannot be read, if it cannot.

    Raises:
        IndexFileError: too many in a row cannot be read: this is not the history of a set.
    """
    header: Header | None = None
    unreadable: IndexFileError | None = None
    num_unreadable = 0
    version = max(start, 1)
    while end is None or version < end:
        try:
            header = _read_once(store, version, early, named=extra if version == start else None)
            unreadable, num_unreadable = None, 0
        except IndexFileError as error:
            unreadable, num_unreadable = error, num_unreadable + 1
            if num_unreadable > MAX_UNREADABLE:
                raise
        except StoreNotFound:
            break
        except StoreAuthError:
            if lenient and version > start > 0:
                break
            raise
        version += 1
    return header, version - 1, unreadable


def _read_early(store: Store, version: int) -> Future[Header]:
    """Begin to read a header in a thread. Saves opening a set a round trip."""
    return begin_call(partial(read_header, store, version), "smalti-next-version")


def _read_once(store: Store, version: int, early: dict[int, Future[Header]], *, named: dict[str, Any] | None) -> Header:
    """Read a header, or return the one that a thread has read; `named` is what the index file says of the version.

    A header that was requested before the index file was read may be older than that: it is read again if it was
    missing (or refused, as S3 does without the right to list), or belongs to a set that was replaced meanwhile.

    Raises:
        StoreNotFound: there is no such version.
        StoreTimeout: the thread has no answer.
    """
    if version in early:
        try:
            found = early.pop(version).result(timeout=HEADER_TIMEOUT_SECONDS)
        except StoreTimeout:  # of the thread's request
            raise
        except FutureTimeout:
            raise StoreTimeout(
                f"{store.locate(header_key(version))}: no answer for {HEADER_TIMEOUT_SECONDS:.0f} s; check the store "
                "and the network, and open the set again.",
                key=header_key(version),
            ) from None
        except (StoreNotFound, StoreAuthError):
            if named is None:
                raise
        else:
            if named is None or all(named.get(name) in (None, getattr(found, name)) for name in ("digest", "write_id")):
                return found
    return read_header(store, version)


@dataclass(frozen=True)
class WantedVersion:
    """The version of a set to be opened: by its number or a tag, or else the newest."""

    number: int | None = None
    tag: str | None = None
    expected: int | None = None
    """The version that is probably the newest; it saves a round trip if it is, and changes nothing else."""
    by_index: bool = True
    """True if the shards of the newest version may be taken from the index file, which was read anyway. False for the
    shard table in any case, with all digests recomputed."""

    def __post_init__(self) -> None:
        if self.tag is not None and self.number is not None:
            raise ArgumentError(f"`version` is {self.number} and `tag` is {self.tag!r}; give one of them")

    def number_in(self, store: Store) -> int | None:
        """Return the number of the version; None for the newest.

        Raises:
            StoreNotFound, VersionNotFound, IndexFileError: as for `read_tag`.
        """
        return self.number if self.tag is None else read_tag(store, self.tag).version


NEWEST = WantedVersion()


def load_manifest(place: Place, *, version: int | None = None) -> Manifest:
    """Load a version of a set.

    A plain MDS set, as MosaicML's writer leaves it, opens as version 0 with a digest of its index; so do `index.json`
    and the shards of a version that were copied without `_versions/`.

    Args:
        place: Root of the set: a URL, folder or store.
        version: Its number; by default the newest.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version.
        IndexFileError: a manifest or index file cannot be trusted.

    Examples:
        >>> manifest = load_manifest("s3://bucket/users", version=1)
        >>> manifest.rows, manifest.schema.columns()
        (10, {'text': 'str', 'user_id': 'int'})
    """
    return open_version(open_store(place), WantedVersion(version))


def open_version(store: Store, choice: WantedVersion = NEWEST) -> Manifest:
    """Open a version, as `load_manifest` does.

    Raises:
        StoreNotFound, VersionNotFound, IndexFileError: as for `load_manifest` and `read_tag`.
    """
    number = choice.number_in(store)
    newest = None if number else find_newest(store, lenient=True, expected=choice.expected)  # 0 is that of a plain set
    if newest is not None and newest.header is None:
        if newest.index is None:
            raise no_shard_set(store)
        return _plain(store, newest)
    if newest is None or newest.header is None or number is not None:
        header = header_of(store, number or 0)
    else:
        header = newest.header
        in_place = _from_index(store, newest, header) if choice.by_index else None
        if in_place is not None:
            return in_place
    try:
        manifest = read_manifest(store, header, recount=not choice.by_index)
        if not choice.by_index:
            _check_segment_digests(manifest)
    except IndexFileError as error:
        shown = None if number is None else find_newest(store, lenient=True).header
        if shown is not None and header.version in shown.expired:
            raise VersionNotFound(
                f"{store.url}: version {header.version} was removed by a vacuum; the newest is {shown.version}. A "
                "version with a tag is kept",
                version=header.version,
                url=store.url,
            ) from error
        raise
    return manifest


def _check_segment_digests(manifest: Manifest) -> None:
    """Compute the digests of all segments anew, and compare them with those of the list."""
    segments = segments_in(manifest.shards)
    for file in () if segments is None else segments.files:
        shards, facts = ShardTable.of(file.load()), file.facts
        found = digest_of_shards(shards) if is_content(manifest.digest_scheme) else digest_of(shards)
        if facts is not None and found != facts.digest:
            raise IndexFileError(
                f"segment {facts.key} has the digest {found[:12]}, the list of segments says {facts.digest[:12]}",
                key=facts.key,
            )


def header_of(store: Store, version: int) -> Header:
    """Return the header of a version.

    Raises:
        VersionNotFound: there is no such version; the message says what there is.
    """
    try:
        return read_header(store, version)
    except StoreNotFound as error:
        newest = find_newest(store, lenient=True)
        if newest.is_plain:
            there = "it is a plain MDS set, which has no versions: open it without `version`"
        elif newest.header is None:
            there = "there is no shard set; check the address"
        else:
            there = f"the newest is {newest.header.version}"
        raise VersionNotFound(
            f"{store.url} has no version {version}: {there}", version=version, url=store.url
        ) from error


def history(place: Place) -> list[VersionInfo]:
    """Return all versions of a set, oldest first, with expired ones.

    Empty for a plain MDS set. A version whose header cannot be read has a `problem`.

    Args:
        place: Root of the set: a URL, folder or store.

    Raises:
        StoreNotFound: there is no set.
        IndexFileError: the index file of a set without versions cannot be read.

    Examples:
        >>> [(version.version, version.operation, version.rows) for version in history("s3://bucket/users")]
        [(1, 'create', 10), (2, 'append', 15)]
    """
    store = open_store(place)
    newest = find_newest(store, lenient=True, skips_unreadable=True)
    if newest.last == 0:
        if newest.index is None:
            raise no_shard_set(store)
        return []
    expired = set(() if newest.header is None else newest.header.expired)
    known = {} if newest.header is None else {newest.header.version: newest.header}
    entries = []
    for version in range(1, newest.last + 1):
        with suppress(StoreNotFound):
            try:
                header = known.get(version) or read_header(store, version)
            except IndexFileError as error:
                unknown = VersionInfo(version=version, digest="", rows=0, num_shards=0, num_bytes=0)
                entries.append(replace(unknown, problem=error.message))
            else:
                entries.append(VersionInfo(**shared_fields(header, VersionInfo), is_expired=version in expired))
    return entries


def no_shard_set(store: Store) -> StoreNotFound:
    """Return the error for a place at which `find_newest` found nothing."""
    return StoreNotFound(
        f"{store.url} holds no shard set: neither {INDEX} nor {header_key(1)} is there; check the address",
        key=INDEX,
        url=store.url,
    )


def headers_before(store: Store, newest: Header) -> Iterator[Header]:
    """Yield the headers of the versions before this one, newest first, each read on demand; skip missing ones."""
    for version in range(newest.version - 1, 0, -1):
        with suppress(StoreNotFound):
            yield read_header(store, version)


def _from_index(store: Store, newest: Newest, header: Header) -> Manifest | None:
    """Return the newest version from the index file, which was read already; None if the file is not sufficient.

    An index file is equivalent to the shard table of the version that it shows if its entries have the sum that it
    names: that covers all information about shards. Opening a small set this way saves two requests and the import of
    Arrow.
    """
    index, extra = newest.index, newest.extra or {}
    if index is None or index.top is None or header.is_segmented:
        return None
    if any(extra.get(name) != getattr(header, name) for name in ("digest", "version", "write_id")):
        return None
    try:
        shards = decode_unlisted_hashes(shards_of(index.top, where=store.locate(INDEX))[0], extra)
    except IndexFileError:
        return None  # the index file is only a copy; the shard table decides
    splits = dict(zip(header.partitions, header.partitions, strict=True))
    found = tuple(replace(shard, partition=splits.get(shard.raw.basename.split("/", 1)[0])) for shard in shards)
    is_whole = (sum(shard.samples for shard in found), len(found)) == (header.rows, header.num_shards)
    if not is_whole or digest_of(found) != (extra.get(LISTED) if header.digest_scheme else header.digest):
        return None
    return make_manifest(header, decode_block_lists(found, extra))


def _plain(store: Store, newest: Newest) -> Manifest:
    index, where = newest.index, store.locate(INDEX)
    shards: Sequence[ShardInfo]
    regular = None if index is None else index.regular
    if regular is not None:
        shards, digest = regular
    else:
        known = None if index is None else index.top
        top = load_strict(store.get_limited(INDEX, MAX_INDEX_BYTES), where=where) if known is None else known
        if newest.is_split_folder and isinstance(top.get("version"), str):
            raise IndexFileError(
                f"{where} lists no shards, because the set has very many; open the folder above it, with "
                f"split={(newest.extra or {}).get('split')!r}",
                key=INDEX,
            )
        shards, digest = _plain_shards(shards_of(top, where=where)[0], newest)
    return Manifest(
        version=newest.index.version if newest.is_split_folder and newest.index is not None else 0,
        digest=digest,
        rows=samples_of(shards),
        schema=shards[0].schema if shards else Schema.from_columns({}),
        shards=shards,
    )


def _plain_shards(shards: Sequence[ShardInfo], newest: Newest) -> tuple[Sequence[ShardInfo], str]:
    """Return the shards of an index file with what stands below Smalti's key, and their digest.

    Of a set without versions, only hashes of whole files that the sum of the entries confirms: another program may have
    changed the entries, and a copy need not have the files of block lists. The copy of a version has the digest of the
    version, if that is of the content; other sets have one over the names, sizes and hashes of their files.
    """
    extra = newest.extra or {}
    if newest.is_split_folder:
        listed = decode_block_lists(decode_unlisted_hashes(shards, extra), extra)
        return listed, digest_of(listed)
    with suppress(IndexFileError):
        hashed = decode_unlisted_hashes(shards, extra)
        known = digest_of(hashed)
        if known == extra.get(LISTED) and isinstance(logical := extra.get("logical", {}), dict):
            content = digest_by(CONTENT, hashed, logical)
            return hashed, content if content == extra.get("digest") else known
        if known == extra.get("digest"):
            return hashed, known
    return tuple(shards), digest_of(shards)


@dataclass(frozen=True)
class Tag:
    """A tag as it was read."""

    name: str
    version: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read_tags(place: Place) -> dict[str, Tag]:
    """Return all tags with their metadata, sorted by name.

    Raises:
        IndexFileError: a tag cannot be read.
    """
    store = open_store(place)
    found = {}
    for info in store.list(TAGS):
        name = info.key.removeprefix(f"{TAGS}/").removesuffix(_TAG_SUFFIX)
        if _is_name(name) and info.key == tag_key(name):
            try:
                found[name] = _read(store, name)
            except StoreNotFound:
                continue  # removed since the listing
    return dict(sorted(found.items()))


def read_tag(store: Store, name: str) -> Tag:
    """Return a tag with its metadata.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such tag; the message lists the tags.
        IndexFileError: the tag cannot be read.
    """
    try:
        return _read(store, name)
    except StoreNotFound as error:
        # Checked only now, so that reading an existing tag takes a single request.
        newest = find_newest(store, lenient=True)
        if newest.header is None and newest.index is None:
            raise no_shard_set(store) from error
        listed = ""
        with suppress(StoreError):  # credentials that may read are not always allowed to list
            listed = f"; its tags: {', '.join(map(repr, read_tags(store))) or 'none'}"
        raise VersionNotFound(f"{store.url} has no tag {name!r}{listed}", tag=name) from error


def _read(store: Store, name: str) -> Tag:
    key = tag_key(name)
    return parse_tag(store, name, store.get_range(key, 0, TAG_BYTES))


def parse_tag(store: Store, name: str, data: bytes) -> Tag:
    """Parse the content of a tag.

    Raises:
        IndexFileError: it is not one of this name.
    """
    key = tag_key(name)
    found = parse_json(data, where=store.locate(key))
    version, metadata = found.get("version"), found.get("metadata", {})
    if found.get("tag", name) != name:
        raise IndexFileError(
            f"{store.locate(key)} is the tag {found['tag']!r:.60} under another name; it was copied or renamed. "
            "Set the tag with `smalti tag`",
            key=key,
        )
    if type(version) is not int or version < 1:
        raise IndexFileError(f"{store.locate(key)}: expected a version from 1 on, found {version!r:.60}", key=key)
    if not isinstance(metadata, dict):
        raise IndexFileError(f"{store.locate(key)}: expected metadata by name, found {metadata!r:.60}", key=key)
    return Tag(name, version, metadata)


def tag_key(name: str) -> str:
    """Return the key of a tag.

    Raises:
        CatalogError: the name is invalid.
    """
    if not _is_name(name):
        raise CatalogError(
            f"tag {name!r:.140} is not usable: expected 1 to 128 letters, digits and . _ -, beginning with a letter or "
            "digit, and not digits alone, which would read like a version",
            tag=name,
        )
    return f"{TAGS}/{name}{_TAG_SUFFIX}"


def _is_name(name: str) -> bool:
    return bool(_TAG_NAME.fullmatch(name)) and not name.isdigit()
