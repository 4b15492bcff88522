"""`copy_version`: one version from one store to another; and `sync`: a mirror gets all that it lacks, and the tags.

Intended behaviour; anything else is a bug:
1. All objects are at the target, verified, before the version is published there by the same commit as every other:
   no reader sees a part of it.
2. Keys, write ids, hashes, digest and row hash stay. The number is that of the target.
3. A call that was killed or failed is repeated: what is complete at the target is not copied again.
4. Another publisher at the target during the call is a `CommitConflict`, which loses nothing. Call again.
5. A vacuum at either side does no harm: see `target`; at the source it ends the copy with `VersionNotFound`.
6. Records of deleted samples go with the version. One that lacks a record which the target has is refused.

Versions of a `sync` are published at the target in the order of the source, and are recognised by their write ids. With
`history` they also keep their numbers, as long as nothing but `sync` publishes at the target: a version whose objects
the source has no longer gets a placeholder, which is expired as it is at the source. A vacuum or purge at the target
adds a version of its own; the numbers then differ, and the report has both.

Also here: the results of copies.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from smalti.attributes import whole_or_none
from smalti.catalog.commit import SYSTEM, check_created
from smalti.catalog.manifest import FOLDER, INDEX, Header, read_header, read_manifest
from smalti.catalog.next_version import VersionStep
from smalti.catalog.opening import (
    Tag,
    WantedVersion,
    find_newest,
    header_of,
    headers_before,
    open_version,
    read_tags,
)
from smalti.catalog.publishing import Mode, check_target, publish_copy
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import erasure_id
from smalti.catalog.table.shard_table import samples_of
from smalti.catalog.tags import tag as set_tag
from smalti.errors import ArgumentError, CommitConflict, DatasetExists, StoreExists, StoreNotFound
from smalti.exchange.target import CopyTarget, Parcel, files_of, vacuumed
from smalti.exchange.transfer import CopyOptions, Progress, Transfer, is_whole
from smalti.format import MAX_INDEX_BYTES
from smalti.format.index import FileInfo
from smalti.storage import Place
from smalti.storage.store import put_own


@dataclass(frozen=True)
class CopiedVersion:
    """A version of the source, and the version of the target with the same content."""

    source: int
    """Number at the source; 0 for a plain MDS set."""
    target: int | None
    """Number at the target; None if it is not there yet, in a dry run."""
    write_id: str
    digest: str
    rows: int
    was_present: bool
    """True if the target had it before the call."""
    is_placeholder: bool = False
    """True if the source has no objects of it any more: at the target its number stands for the next version."""


@dataclass(frozen=True)
class SkippedVersion:
    """A version of the source that was asked for and cannot be copied."""

    source: int
    why: str


@dataclass(frozen=True)
class CopyReport:
    """The result of `copy_version` or `sync`."""

    source: str
    """Address, without secrets."""
    target: str
    dry_run: bool
    versions: tuple[CopiedVersion, ...]
    """The versions that were asked for, oldest first."""
    num_objects: int
    """Number of objects that were copied, or would be."""
    num_bytes: int
    """Their size, bytes."""
    num_present: int
    """Number of objects of new versions that the target had already."""
    bytes_present: int
    tags: Mapping[str, int] = field(default_factory=dict)
    """Tags that were set or moved at the target, or would be: name to version of the source."""
    skipped: tuple[SkippedVersion, ...] = ()
    may_hold_deleted: tuple[int, ...] = ()
    """Versions of the target from before a deletion of samples that its newest version records: they may still hold
    the samples. Call `delete` with `purge` and the same condition at the target, or `vacuum`."""

    @property
    def is_in_sync(self) -> bool:
        """True if there was nothing to copy, publish or tag."""
        return all(each.was_present for each in self.versions) and not self.num_objects and not self.tags

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "is_in_sync": self.is_in_sync}

    def summary(self) -> str:
        """Return a one-line summary."""
        did = "would be copied" if self.dry_run else "copied"
        new = sum(not each.was_present for each in self.versions)
        if self.is_in_sync:
            return f"nothing to copy: {len(self.versions):,} versions are there"
        there = f", {self.num_present:,} objects were there" if self.num_present else ""
        tagged = f", {len(self.tags):,} tags" if self.tags else ""
        what = f"{new:,} versions, {self.num_objects:,} objects, {self.num_bytes:,} bytes{tagged}"
        return f"{what} {did}{there}"


def copy_version(  # noqa: PLR0913 -- keywords of one operation
    source: Place,
    target: Place,
    *,
    version: int | None = None,
    tag: str | None = None,
    split: str | None = None,
    mode: Mode = "create",
    restore_erased: bool = False,
    dry_run: bool = False,
    options: CopyOptions | None = None,
    on_progress: Progress | None = None,
) -> CopyReport:
    """Copy one version, the newest by default, to another place, and publish it there.

    A plain MDS set, as MosaicML's writer leaves it, is copied with its index file, which is put last.

    Args:
        source: The root of the set: a URL, folder or store.
        target: The place to copy to; nothing, or a set of Smalti's.
        version: The number of the version.
        tag: Its tag, instead of the number.
        split: Only the shards of this split; the copy then has a digest of its own.
        mode: `create`: the target has no set yet, or this version; `overwrite`: the copy is published after the
            versions that are there.
        restore_erased: Copy the version even if samples were deleted at the target of whose deletion it has no record,
            so that they may come back.
        dry_run: Change nothing; only report what would be copied.
        options: Limits and checks.
        on_progress: Called with (bytes done, bytes in all) after each object.

    Raises:
        StoreNotFound: there is no set at the source.
        VersionNotFound: there is no such version or tag, or a vacuum removed it.
        DatasetExists: `create`, and there is another set at the target; or a set that Smalti did not write.
        ChecksumMismatch: an object at the source is not what its manifest declares; nothing of it was published.
        CommitConflict: another writer published at the target during the call; call again.
        CommitUnknown: as for `publish`.
        CatalogError: a vacuum at the target removes objects of the same write; or samples were deleted at the target
            that the version may hold, and `restore_erased` is not given.
        StoreError: a store failed; calling again continues.

    Examples:
        >>> report = copy_version("s3://bucket/users", "/data/copy", version=1)
        >>> smalti.open_dataset("/data/copy").size
        10
    """
    if mode not in {"create", "overwrite"}:
        raise ArgumentError(f"`mode` is {mode!r}, expected 'create' or 'overwrite'")
    transfer = Transfer(source, target, options, on_progress, dry_run=dry_run)
    choice = WantedVersion(whole_or_none("version", version), tag)
    number = choice.number_in(transfer.source)
    newest = find_newest(transfer.source, lenient=True).header
    if newest is None:
        return _copy_plain(transfer, number, split)
    number = newest.version if number is None else number
    if number in newest.expired:
        raise vacuumed(transfer.source, number)
    header = header_of(transfer.source, number)
    manifest = read_manifest(transfer.source, header)
    state = CopyTarget.read(transfer.target)
    write_id = header.write_id
    if split is not None:  # it follows from the source's, so that a repeated call returns the same version
        text = f"{write_id}\n{manifest.digest}\n{split}"
        write_id = f"copy-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    present = state.version_of(header, write_id=write_id)
    if present is None:
        check_target(transfer.target, mode, can_append=False)
        if not restore_erased:
            state.check_erased(header)
    return _copy_parcels(transfer, state, [Parcel(transfer.source, manifest, header, write_id, split, present)])


def _report(
    transfer: Transfer,
    versions: Sequence[CopiedVersion],
    missing: Sequence[FileInfo],
    num_files: int,
    num_bytes: int,
    may_hold_deleted: tuple[int, ...] = (),
) -> CopyReport:
    """Return the report of a copy of so many files and bytes, some of which were missing at the target."""
    copied = sum(file.num_bytes for file in missing)
    return CopyReport(
        source=transfer.source.url,
        target=transfer.target.url,
        dry_run=transfer.dry_run,
        versions=tuple(versions),
        num_objects=len(missing),
        num_bytes=copied,
        num_present=num_files - len(missing),
        bytes_present=num_bytes - copied,
        may_hold_deleted=may_hold_deleted,
    )


def _copy_parcels(transfer: Transfer, state: CopyTarget, parcels: Sequence[Parcel]) -> CopyReport:
    """Copy what is missing of these versions, and publish them in this order.

    Raises:
        VersionNotFound: a vacuum removed a version that is being copied.
        Otherwise: as for `copy_version`.
    """
    new = [parcel for parcel in parcels if parcel.present is None]
    owners = [parcel.owners() for parcel in new]
    for parcel, names in zip(new, owners, strict=True):
        state.check_fences(parcel, names)
    if not transfer.dry_run:
        state.begin({name for names in owners for name in names})
    checked = [parcel for parcel in parcels if parcel.present is None or transfer.options.read_back]
    missing, num_files, num_bytes = _needs(state, checked, is_checked=transfer.options.read_back)
    published: dict[int, int] = {}  # by number at the source: write ids that are no longer remembered may come again
    if not transfer.dry_run:
        try:
            transfer.run(missing)
        except StoreNotFound as error:
            current = find_newest(transfer.source, lenient=True).header
            gone = set() if current is None else {each.source.version for each in checked} & set(current.expired)
            if not gone:
                raise
            raise vacuumed(transfer.source, min(gone)) from error
        parent, expired = state.newest, list[int]()
        for parcel, names in zip(new, owners, strict=True):
            step = VersionStep(
                parent,
                "copy",
                SYSTEM,
                owners=names,
                expired=tuple(expired),
                erased=parcel.erased,
                digest_scheme=parcel.manifest.digest_scheme if parcel.split is None else None,
            )
            manifest = publish_copy(transfer.target, parcel.draft(transfer.target), step)
            published[parcel.source.version] = manifest.version
            expired = [*expired, manifest.version] if parcel.placeholder_for is not None else expired
            for owner in names:
                markers.end(transfer.target, owner)
            parent = read_header(transfer.target, manifest.version)
    versions = tuple(
        CopiedVersion(
            source=parcel.source.version,
            target=published.get(parcel.source.version) if parcel.present is None else parcel.present.version,
            write_id=parcel.write_id,
            digest=parcel.manifest.digest,
            rows=samples_of(parcel.manifest.select(parcel.split)),
            was_present=parcel.present is not None,
            is_placeholder=parcel.placeholder_for is not None,
        )
        for parcel in parcels
    )
    may_hold_deleted = state.may_hold_deleted(
        (None if parcel.placeholder_for is not None else published.get(parcel.source.version), parcel.erased)
        for parcel in new
    )
    return _report(transfer, versions, missing, num_files, num_bytes, may_hold_deleted)


def _needs(state: CopyTarget, parcels: Sequence[Parcel], *, is_checked: bool) -> tuple[list[FileInfo], int, int]:
    """Return the files that the target lacks, each once, and the number and the bytes of all."""
    missing: list[FileInfo] = []
    seen: set[str] = set()
    num_files = num_bytes = 0
    for parcel in parcels:
        files = [file for file in parcel.files() if file.basename not in seen]
        if parcel.present is not None:  # a version may have the same content under other keys
            files = [file for file in files if state.is_needed(file)]
        seen |= {file.basename for file in files}
        num_files, num_bytes = num_files + len(files), num_bytes + sum(file.num_bytes for file in files)
        missing += state.missing(parcel, files, is_checked=is_checked)
    return missing, num_files, num_bytes


def _copy_plain(transfer: Transfer, number: int | None, split: str | None) -> CopyReport:
    """Copy a set without versions: its shards, and then its index file as it is. `number` must be 0 or None.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no version of this number.
        DatasetExists: there is another set at the target.
        CatalogError: a split was asked for.
        CommitConflict: another writer put an index file during the call.
    """
    manifest = open_version(transfer.source, WantedVersion(number, by_index=False))
    manifest.select(split)  # raises: these sets have no splits
    index = transfer.source.get_limited(INDEX, MAX_INDEX_BYTES)
    there = find_newest(transfer.target)
    is_present = there.index is not None and transfer.target.get_range(INDEX, 0, len(index) + 1) == index
    if not is_present and (there.index is not None or there.header is not None):
        raise DatasetExists(
            f"{transfer.target.url} already holds another set, and a plain MDS set has no versions: choose another "
            "place",
            url=transfer.target.url,
        )
    files = list(files_of(transfer.source, manifest))
    named = {file.basename for file in files if file.hashes}  # names are not unique, so that hashes must agree
    listed = transfer.target.list() if named else ()
    sizes = {info.key: info.num_bytes for info in listed if info.key in named}
    missing = [
        file for file in files if sizes.get(file.basename) != file.num_bytes or not is_whole(transfer.target, file)
    ]
    if not transfer.dry_run:
        transfer.run(missing)
        if not is_present:
            transfer.target.check_exclusive_puts(FOLDER)
            try:
                put_own(transfer.target, INDEX, index)
            except StoreExists as error:
                raise CommitConflict(
                    f"{transfer.target.locate(INDEX)} was put by another writer during the copy; nothing was replaced"
                ) from error
            check_created(transfer.target, INDEX, index)
    copied = CopiedVersion(
        source=manifest.version,
        target=None if transfer.dry_run and not is_present else manifest.version,
        write_id="",
        digest=manifest.digest,
        rows=manifest.rows,
        was_present=is_present,
    )
    return _report(transfer, [copied], missing, len(files), sum(file.num_bytes for file in files))


def sync(
    source: Place,
    target: Place,
    *,
    history: bool = False,
    tags: bool = False,
    dry_run: bool = False,
    options: CopyOptions | None = None,
    on_progress: Progress | None = None,
) -> CopyReport:
    """Bring a mirror up to date: copy and publish the versions that it lacks, and set the tags.

    Nothing is removed at the target; use `vacuum` there, or `delete` with `purge`. A tag of the target that the source
    does not have stays.

    Args:
        source: The root of the set: a URL, folder or store.
        target: The mirror: nothing yet, or a place that only `copy_version` and `sync` publish to.
        history: All versions that can be opened, oldest first, instead of the newest alone.
        tags: All tags with their metadata, and the versions that have them.
        dry_run: Change nothing; only report what would be copied.
        options: Limits and checks.
        on_progress: Called with (bytes done, bytes in all) after each object.

    Raises:
        DatasetExists: the target has versions that the source does not have.
        CatalogError: samples were purged at the target that a version of the source may hold.
        Otherwise: as for `copy_version`.

    Examples:
        >>> report = sync("s3://bucket/users", "/data/mirror", history=True)
        >>> [version.source for version in report.versions]
        [1, 2]
    """
    transfer = Transfer(source, target, options, on_progress, dry_run=dry_run)
    newest = find_newest(transfer.source, lenient=True).header
    if newest is None:
        return _copy_plain(transfer, None, None)
    # Newest first, so that a version which is published meanwhile is left to the next call.
    headers = [newest, *headers_before(transfer.source, newest)][::-1]
    state = CopyTarget.read(transfer.target)
    done = _last_copied(state, headers)
    tagged = read_tags(transfer.source) if tags else {}
    chosen = {newest.version, *(each.version for each in tagged.values())}
    wanted = [header for header in headers if history or header.version in chosen]
    parcels, skipped = _parcels(transfer, state, headers, wanted, done, history=history)
    report = _copy_parcels(transfer, state, parcels)
    moved = _set_tags(transfer, report, tagged)
    return replace(report, skipped=tuple(skipped), tags=moved)


def _last_copied(state: CopyTarget, headers: Sequence[Header]) -> int:
    """Return the newest version of the source that the target has, or had; 0 if there is none.

    Raises:
        DatasetExists: the target has newer versions that the source does not have.
    """
    numbers = {header.write_id: header.version for header in headers}
    for number in sorted(state.headers, reverse=True):
        header = state.headers[number]
        if header.write_id in numbers:
            return numbers[header.write_id]
        if header.operation not in ("vacuum", "purge"):  # which have the content of the one before
            raise DatasetExists(
                f"{state.store.url}: version {number} ({header.operation}, write id {header.write_id}) is not one of "
                "the source's, so that this is no mirror of it. Nothing was copied. Sync to another place, or publish "
                "a copy after it with `copy_version` and mode='overwrite' (`smalti cp --overwrite`)",
                version=number,
            )
    return 0


def _parcels(
    transfer: Transfer,
    state: CopyTarget,
    headers: Sequence[Header],
    wanted: Sequence[Header],
    done: int,
    *,
    history: bool,
) -> tuple[list[Parcel], list[SkippedVersion]]:
    """Return what to copy, oldest first, and the wanted versions that the target cannot get any more.

    After the copy the newest version of the target is that of the source.

    Raises:
        CatalogError: samples were deleted at the target that a version may hold.
    """
    expired = set(headers[-1].expired)
    parcels, skipped = list[Parcel](), list[SkippedVersion]()
    for header in wanted:
        number, is_done = header.version, header.version <= done
        if number in expired and (is_done or not history):
            continue
        present = state.version_of(header, write_id=None if is_done or not history else header.write_id)
        if is_done and present is None:
            why = f"older than version {done}, which the target has: versions are only added after the newest"
            skipped.append(SkippedVersion(number, why))
            continue
        is_placeholder = number in expired
        content = header
        if is_placeholder:
            content = next(each for each in headers if each.version > number and each.version not in expired)
        parcels.append(
            Parcel(
                transfer.source,
                read_manifest(transfer.source, content),
                content,
                header.write_id,
                present=None if is_placeholder else present,
                placeholder_for=header if is_placeholder else None,
            )
        )
    is_newest = state.is_at(headers[-1]) and all(parcel.present is not None for parcel in parcels)
    if parcels and parcels[-1].source.version > done and not is_newest:
        parcels[-1] = replace(parcels[-1], present=None)  # a rollback at the source: only its content is there
    known = {erasure_id(entry) for header in headers for entry in header.erased}
    for parcel in parcels:
        if parcel.present is None:
            state.check_erased(parcel.content, known)
    return parcels, skipped


def _set_tags(transfer: Transfer, report: CopyReport, tagged: Mapping[str, Tag]) -> dict[str, int]:
    """Set the tags whose versions the target has; return those that were not there like this before."""
    numbers = {each.source: each.target for each in report.versions}
    known = read_tags(transfer.target) if tagged else {}
    moved = {}
    for name, each in tagged.items():
        if each.version not in numbers:
            continue  # skipped, and reported as such
        number, found = numbers[each.version], known.get(name)
        if found is not None and (found.version, found.metadata) == (number, each.metadata):
            continue
        moved[name] = each.version
        if not transfer.dry_run:
            set_tag(transfer.target, name, number, move=found or False, metadata=dict(each.metadata))
    return moved
