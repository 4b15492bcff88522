"""`sync`: a mirror gets what it lacks: the newest version, or all of them, and the tags.

Versions are published at the target in the order of the source, and are recognised by their write ids. With `history`
they also keep their numbers, as long as nothing but `sync` publishes at the target: a version whose objects the source
has no longer gets a placeholder, which is expired as it is at the source. A vacuum or purge at the target adds a
version of its own; the numbers then differ, and the report has both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smalti.catalog.erasures import erasure_id
from smalti.catalog.header import Header
from smalti.catalog.opening import Tag, find_newest, headers_before, no_shard_set, read_tags
from smalti.catalog.tags import tag
from smalti.errors import DatasetExists
from smalti.exchange.copying import CopyReport, Parcel, SkippedVersion, copy_parcels, copy_plain
from smalti.exchange.target import REMOVALS, CopyTarget, content_of, has_same_content, has_same_records, read_content
from smalti.exchange.transfer import CopyOptions, Progress, Transfer
from smalti.storage import Place


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
    newest = find_newest(transfer.source, lenient=True)
    if newest.header is None:
        if newest.index is None:
            raise no_shard_set(transfer.source)
        return copy_plain(transfer, read_content(transfer.source, None), None)
    # Newest first, so that a version which is published meanwhile is left to the next call.
    headers = [newest.header, *headers_before(transfer.source, newest.header)][::-1]
    state = CopyTarget.read(transfer.target, find_newest(transfer.target))
    done = _last_copied(state, headers)
    tagged = read_tags(transfer.source) if tags else {}
    wanted, skipped = _wanted(state, headers, done, {each.version for each in tagged.values()}, history=history)
    parcels = _parcels(transfer, state, headers, wanted, done, history=history)
    report = copy_parcels(transfer, state, parcels)
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
        if header.operation not in REMOVALS:
            raise DatasetExists(
                f"{state.store.url}: version {number} ({header.operation}, write id {header.write_id}) is not one of "
                "the source's, so that this is no mirror of it. Nothing was copied. Sync to another place, or publish "
                "a copy after it with `copy_version` and mode='overwrite' (`smalti cp --overwrite`)",
                version=number,
            )
    return 0


def _wanted(
    state: CopyTarget, headers: Sequence[Header], done: int, tagged: set[int], *, history: bool
) -> tuple[list[Header], list[SkippedVersion]]:
    """Return the versions that the target should have, oldest first, and those that it cannot get any more."""
    newest = headers[-1]
    chosen = [header for header in headers if header.version == newest.version or header.version in tagged or history]
    wanted, skipped = [], []
    for header in chosen:
        is_there = state.version_of(header) is not None
        if header.version in newest.expired and header.version <= done:
            continue
        if header.version <= done and not is_there:
            why = f"older than version {done}, which the target has: versions are only added after the newest"
            skipped.append(SkippedVersion(header.version, why))
        else:
            wanted.append(header)
    return wanted, skipped


def _parcels(
    transfer: Transfer,
    state: CopyTarget,
    headers: Sequence[Header],
    wanted: Sequence[Header],
    done: int,
    *,
    history: bool,
) -> list[Parcel]:
    """Return what to copy, oldest first; after it the newest version of the target is that of the source.

    Raises:
        CatalogError: samples were deleted at the target that a version may hold.
    """
    source, newest, expired = headers[-1], state.newest, set(headers[-1].expired)
    found = []
    for header in wanted:
        present = state.version_of(header, write_id=header.write_id if history and header.version > done else None)
        if header.version not in expired:
            content = content_of(transfer.source, header)
            found.append(Parcel(content, header.write_id, present=present))
        elif history:
            following = next(each for each in headers if each.version > header.version and each.version not in expired)
            content = content_of(transfer.source, following)
            found.append(Parcel(content, header.write_id, placeholder_for=header))
    is_newest = newest is not None and has_same_content(newest, source) and has_same_records(source, newest)
    is_newest = is_newest and all(parcel.present is not None for parcel in found)
    if found and found[-1].source.version > done and not is_newest:
        found[-1] = replace(found[-1], present=None)  # a rollback at the source: only its content is there
    known = {erasure_id(entry) for header in headers for entry in header.erased}
    for parcel in found:
        if parcel.present is None:
            state.check_erased(parcel.content.header or parcel.source, known)
    return found


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
            tag(transfer.target, name, number, move=found or False, metadata=dict(each.metadata))
    return moved
