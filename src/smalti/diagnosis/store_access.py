"""Checks of one place: its address, the source of its credentials, the data set, and the rights to list and write."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smalti.catalog import Manifest, load_manifest
from smalti.catalog.header import INDEX
from smalti.catalog.table.shard_table import bytes_of
from smalti.diagnosis.findings import Finding, State, finding_of, one_line, split_message
from smalti.diagnosis.machine import byte_text
from smalti.errors import MissingDependency, SmaltiError, StoreAuthError, StoreError, StoreNotFound
from smalti.format import ShardInfo
from smalti.storage import FsspecStore, Place, Store, open_store
from smalti.storage.probe import PROBE_FOLDER, probe_store
from smalti.storage.schemes import load_extra

LIMITS = {"request_timeout": 10.0, "request_attempts": 2}
"""Storage options that keep single requests of a diagnosis short."""
_GRANTS = "docs/storage.md lists the least rights of each store"


@dataclass
class PlaceFacts:
    """The facts about a place that other checks need."""

    manifest: Manifest | None = None
    """The newest version; None if there is none, or it could not be read."""
    store: Store | None = None
    """The store; None if it could not be opened."""


def check_place(
    place: Place, options: Mapping[str, Any] | None, facts: PlaceFacts, *, write: bool = False
) -> Iterator[Finding]:
    """Yield what is found about a place, up to the first fault that makes all later checks pointless.

    Args:
        place: Address or store.
        options: Options of the store.
        facts: Filled in on the way.
        write: Try to put, replace and delete a probe object, which is removed again.
    """
    try:
        store = facts.store = open_store(place, {**LIMITS, **(options or {})})
        for package in store.scheme.packages if isinstance(store, FsspecStore) else ():
            load_extra(package)
    except MissingDependency as error:
        text, _, remedy = one_line(error).partition(": ")
        yield Finding("address", State.FAULT, text, remedy)
        return
    except (SmaltiError, TypeError, ValueError) as error:
        yield finding_of("address", error)
        return
    data_set = _data_set(store, facts)
    if isinstance(store, FsspecStore):
        try:  # errors of requests do not say where the credentials come from
            source = store.login()
        except Exception as error:  # noqa: BLE001 -- of any client library; the requests show whether it matters
            yield Finding("credentials", State.WARNING, one_line(error), store.scheme.credentials_help)
        else:
            text = f"from {source}" if source else "found by the client itself, or none needed"
            yield Finding("credentials", State.OK, text)
    yield data_set
    if data_set.state is State.FAULT:
        return
    yield _listing(store)
    yield from _check_writing(store, write=write)


def _data_set(store: Store, facts: PlaceFacts) -> Finding:
    """Return the newest version, or the library's error about opening it."""
    try:
        manifest = facts.manifest = load_manifest(store)
    except StoreNotFound:
        # Opening does not distinguish a bucket that does not exist from an empty one.
        try:
            store.get_range(INDEX, 0, 1)
        except StoreError as error:
            if error.facts.get("is_bucket"):
                return finding_of("bucket", error)
        text = f"no shard set at {store.url}"
        return Finding("data set", State.WARNING, text, "check the address, unless you are about to write the first")
    except SmaltiError as error:
        return finding_of("data set", error)
    shards = manifest.shards
    name = f"version {manifest.version}" if manifest.version else "a plain MDS set, without versions"
    text = f"{name}: {manifest.rows:,} samples in {len(shards):,} shards, {byte_text(manifest.num_bytes)}"
    if len(shards):
        first = shards[0]
        text = f"{text}, {first.format}" + (f" in {first.compression}" if first.zip is not None else "")
    return Finding("data set", State.OK, text)


def _listing(store: Store) -> Finding:
    """Return whether the store may be listed, which only vacuum and delete need."""
    try:
        next(iter(store.list("_versions")), None)
    except StoreAuthError:
        text = "not allowed with these credentials; reading works without, vacuum and delete do not"
        return Finding("list", State.WARNING, text, f"grant it (S3: s3:ListBucket on the bucket); {_GRANTS}")
    except StoreError as error:
        if _is_read_only(store):
            return Finding("list", State.SKIPPED, "a web server cannot be listed; reading a set needs no listing")
        return finding_of("list", error)
    return Finding("list", State.OK, "allowed")


def _is_read_only(store: Store) -> bool:
    return isinstance(store, FsspecStore) and store.scheme.is_read_only


def _check_writing(store: Store, *, write: bool) -> Iterator[Finding]:
    if _is_read_only(store):
        yield Finding("write", State.SKIPPED, "this kind of store is read only")
        return
    if not write:
        yield Finding("write", State.SKIPPED, "not tried", "--write tries it with a small object, which it removes")
        return
    folder = store.local_path(PROBE_FOLDER)
    new = [] if folder is None else [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield from _try_writing(store)
    finally:
        for place in new:  # object stores have no empty folders
            with suppress(OSError):  # not empty, or not made
                place.rmdir()


def _try_writing(store: Store) -> Iterator[Finding]:
    probe = probe_store(store)
    failed = [step for step in probe.steps if step.problem]
    for step in failed:
        found, advice = split_message(step.problem)
        grant = f"grant it (S3: s3:PutObject and s3:DeleteObject on the objects); {_GRANTS}"
        if step.is_refused and step.name == "list":
            continue  # reported before
        if step.is_refused:
            yield Finding("write", State.FAULT, f"{step.name}: not allowed with these credentials", grant)
        else:
            yield Finding("write", State.FAULT, f"{step.name}: {found}", advice or "check the store")
    if failed:
        return
    yield Finding("write", State.OK, "create, create only once, replace and delete work")
    try:
        store.check_conditional_puts(PROBE_FOLDER)
    except StoreError as error:
        text, advice = split_message(one_line(error))
        is_known = bool(error.facts.get("is_unsupported"))
        yield Finding("conditional put", State.WARNING if is_known else State.FAULT, text, advice)
    else:
        yield Finding("conditional put", State.OK, "honoured (If-Match)")


def set_bytes(manifest: Manifest) -> tuple[int, int]:
    """Return the bytes that copies of a whole version take, and those of its largest shard while it is fetched."""
    sizes = bytes_of(manifest.shards)
    if not sizes.raw.size:
        return 0, 0
    return int(sizes.raw.sum()), int((sizes.raw + sizes.zipped).max())


def is_read_in_place(store: Store, shards: Sequence[ShardInfo]) -> bool:
    """Return whether shards are files on this machine that need not be unpacked, so that none is copied."""
    return store.local_path(INDEX) is not None and not bytes_of(shards).zipped.any()
