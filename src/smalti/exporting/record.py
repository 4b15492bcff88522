"""The record of an export in its target: which version and options it has, its files, and whether it is complete.

`_smalti_export.json` is put before the first file, with `"complete": false`, and replaced after the last one. Files are
put in one step each, so a file that exists is whole. An empty `_SUCCESS` is put last, as Spark does, for programs that
wait for it. Names that begin with `_` are ignored by readers of folders of Parquet files.

Also here: the plan of an export, which says which samples each file has, decided from the manifest before a byte is
read.

The same version and options always give the same plan, so that an export which was interrupted continues with the files
that are missing. Pure.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from smalti.errors import CatalogError, FormatError, StoreError, StoreExists, StoreNotFound
from smalti.format import load_strict
from smalti.format.index import MAX_INDEX_BYTES
from smalti.storage import Store
from smalti.storage.local import sync_path
from smalti.storage.store import put_own, temporary_name
from smalti.stream.arrow import RowSpan, group_spans


@dataclass(frozen=True)
class FilePlan:
    """One file to write."""

    key: str
    """Name below the target, such as `train/part-00003-of-00012.tar`."""
    spans: tuple[RowSpan, ...]

    @property
    def num_samples(self) -> int:
        """Samples of the file."""
        return sum(span.end - span.begin for span in self.spans)


def plan_files(spans: Sequence[RowSpan], suffix: str, size_limit: int, overhead: int = 0) -> list[FilePlan]:
    """Return the files of an export, by split and in the order of the samples.

    Args:
        spans: All samples; those of a split are neighbours.
        suffix: Ending of the files' names.
        size_limit: Most bytes of samples in a file, before compression and about: an average of each shard counts.
        overhead: Bytes that the format adds to each sample.
    """
    splits: dict[str | None, list[RowSpan]] = {}
    for span in spans:
        splits.setdefault(span.shards[0].partition, []).append(span)
    plans = []
    for split, members in splits.items():
        groups = group_spans(members, size_limit, overhead)
        folder = f"{split}/" if split else ""
        width = max(5, len(str(len(groups))))
        for number, group in enumerate(groups):
            key = f"{folder}part-{number:0{width}d}-of-{len(groups):0{width}d}{suffix}"
            plans.append(FilePlan(key, tuple(group)))
    return plans


RECORD = "_smalti_export.json"
SUCCESS = "_SUCCESS"
_FORMAT = 1
_ADVICE = "give another folder, or remove this one"


def fingerprint_of(facts: Mapping[str, Any]) -> str:
    """Return what identifies an export: equal fingerprints mean equal files."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def begin(store: Store, facts: Mapping[str, Any], plans: Sequence[FilePlan]) -> tuple[dict[str, int], bool]:
    """Put the record, or find the one of an earlier attempt.

    Returns:
        The files that exist already, with their sizes, and whether that is the whole export. A file whose size is not
        that of a complete record is not one of them: another program has changed it.

    Raises:
        CatalogError: The target holds something else.
        StoreError: The store failed.
    """
    known = read_record(store)
    if known is None:
        _require_empty(store)
        record = _encode(facts, plans, {}, is_complete=False)
        try:
            put_own(store, RECORD, record)
            return {}, False
        except StoreExists:  # another process
            known = read_record(store)
    if known is None or known.get("fingerprint") != facts["fingerprint"]:
        other = known.get("source") if known is not None else None
        source = f"version {other['version']} of {other['url']}" if isinstance(other, dict) else "unknown"
        raise CatalogError(
            f"{store.url} holds another export ({source}), of another version or with other options; {_ADVICE}",
            url=store.url,
        )
    present = {item.key: item.num_bytes for item in store.list()}
    recorded = {entry["name"]: entry.get("bytes") for entry in known["files"]}
    sizes = {
        plan.key: present[plan.key]
        for plan in plans
        if plan.key in present and recorded.get(plan.key) in {None, present[plan.key]}
    }
    return sizes, bool(known["complete"]) and len(sizes) == len(plans) and SUCCESS in present


def complete(store: Store, facts: Mapping[str, Any], plans: Sequence[FilePlan], sizes: Mapping[str, int]) -> None:
    """Check that all files are in the store, and mark the export as complete.

    Raises:
        StoreNotFound: A file was removed meanwhile.
    """
    found = {item.key: item.num_bytes for item in store.list()}
    for plan in plans:
        if found.get(plan.key) != sizes[plan.key]:
            raise StoreNotFound(
                f"{store.locate(plan.key)}: expected {sizes[plan.key]} bytes, found {found.get(plan.key, 'no file')}; "
                "another program changed the target during the export: run it again",
                key=plan.key,
                url=store.url,
            )
    for upload in list(store.unfinished_uploads()):  # of attempts that were killed
        if upload.key in sizes:
            store.abort_upload(upload)
    store.put(RECORD, _encode(facts, plans, sizes, is_complete=True))
    store.put(SUCCESS, b"")


def read_record(store: Store) -> dict[str, Any] | None:
    """Return the record of an export; None if there is none.

    Raises:
        FormatError: It cannot be read.
    """
    try:
        data = store.get_limited(RECORD, MAX_INDEX_BYTES)
    except StoreNotFound:
        return None
    record = load_strict(data, where=store.locate(RECORD))
    if not isinstance(record, dict) or record.get("smalti_export") != _FORMAT:
        raise FormatError(
            f"{store.locate(RECORD)}: expected the record of an export in format {_FORMAT}; update smalti", key=RECORD
        )
    return record


def _require_empty(store: Store) -> None:
    first = next(iter(store.list()), None)
    if first is not None:
        raise CatalogError(
            f"{store.url} is not empty: it has {first.key!r}, and no export; {_ADVICE}", url=store.url, key=first.key
        )


def _encode(
    facts: Mapping[str, Any], plans: Sequence[FilePlan], sizes: Mapping[str, int], *, is_complete: bool
) -> bytes:
    files = [
        {"name": plan.key, "samples": plan.num_samples} | ({"bytes": sizes[plan.key]} if plan.key in sizes else {})
        for plan in plans
    ]
    record = {"smalti_export": _FORMAT, "complete": is_complete, **facts, "files": files}
    return json.dumps(record, indent=1).encode()


@contextmanager
def new_object(store: Store, key: str) -> Iterator[Path]:
    """Yield the path of a file to write, and put it under the key in one step afterwards; nothing after an error.

    Raises:
        StoreError: The file cannot be written or put.
    """
    target = store.local_path(key)
    try:
        if target is None:
            with TemporaryDirectory(prefix="smalti-export-") as folder:
                path = Path(folder) / "file"
                yield path
                store.put_file(key, path)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        path = target.parent / temporary_name(target.name)
        try:
            yield path
            sync_path(path)
            path.replace(target)
        finally:
            path.unlink(missing_ok=True)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"cannot write {store.locate(key)}: {error.strerror or error}", key=key, url=store.url
        ) from error
