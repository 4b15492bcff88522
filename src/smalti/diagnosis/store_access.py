"""Checks of one place: its client package, server, credentials, bucket, rights, and the data set that lies there."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from smalti.catalog import Manifest, load_manifest
from smalti.catalog.header import INDEX
from smalti.catalog.table.shard_table import bytes_of
from smalti.diagnosis.findings import Finding, State, finding_of, one_line, split_message
from smalti.diagnosis.machine import byte_text
from smalti.diagnosis.network import Route, check_route
from smalti.diagnosis.packages import installed_version
from smalti.errors import MissingDependency, SmaltiError, StoreAuthError, StoreError, StoreNotFound
from smalti.format import ShardInfo
from smalti.storage import FsspecStore, Place, Store, open_store
from smalti.storage.probe import PROBE_FOLDER, probe_store
from smalti.storage.schemes import load_extra

LIMITS = {"request_timeout": 10.0, "request_attempts": 2}
"""Storage options that keep single requests of a diagnosis short."""
SHARDS_LOOKED_UP = 16
"""Shards whose sizes are compared with the manifest, spread over the set."""
READ_BYTES = 1024
"""Bytes that are read of an existing shard, to try the right to read."""
_GRANTS = "docs/storage.md lists the least rights of each store"
_ANSWERS: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"),
        (
            "credentials",
            "the credentials have expired",
            "log in again (`aws sso login`), or renew AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        ),
    ),
    **dict.fromkeys(
        ("InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken"),
        (
            "credentials",
            "the store does not know this access key",
            "check AWS_ACCESS_KEY_ID and the profile; for a store that is not AWS also the endpoint (S3_ENDPOINT_URL)",
        ),
    ),
    "SignatureDoesNotMatch": (
        "credentials",
        "the secret key does not belong to the access key",
        "copy AWS_SECRET_ACCESS_KEY again, without spaces or quotes",
    ),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException", "301"),
        (
            "region",
            "the bucket is in another region than the one that was asked",
            "set AWS_REGION to the region of the bucket, and check S3_ENDPOINT_URL",
        ),
    ),
    "RequestTimeTooSkewed": (
        "clock",
        "the store refuses the time of this machine",
        "set the clock of this machine, and have it synchronized (NTP)",
    ),
    "NoSuchBucket": ("bucket", "the bucket does not exist", "check its name and the endpoint, or create it"),
}
"""Check, fact and remedy by the code of the store's answer."""
_NO_RIGHT = frozenset({"AccessDenied", "AllAccessDisabled", "Forbidden", "AuthorizationPermissionMismatch"})
"""Codes of answers to known credentials without the right."""


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
        store = open_store(place, {**LIMITS, **(options or {})})
    except (SmaltiError, TypeError, ValueError) as error:
        yield finding_of("address", error)
        return
    facts.store = store
    is_reachable = True
    for finding in _check_client(store):
        is_reachable = is_reachable and (finding.state is not State.FAULT or finding.check == "clock")
        yield finding
    if not is_reachable:
        yield Finding("access", State.SKIPPED, "not tried: the server cannot be reached")
        return
    is_allowed = True
    for finding in _check_listing(store):
        is_allowed = is_allowed and finding.state is not State.FAULT
        yield finding
    if not is_allowed:
        yield Finding("data set", State.SKIPPED, "not looked for")
        return
    yield from _check_data_set(store, facts)
    yield from _check_writing(store, write=write)


def _check_client(store: Store) -> Iterator[Finding]:
    """Yield findings about the packages of the store's client, and the way to its server."""
    if not isinstance(store, FsspecStore):
        return
    try:
        for package in store.scheme.packages:
            load_extra(package)
    except MissingDependency as error:
        text = f"{store.scheme.name}:// needs the Python package {error.module!r}, which is not installed"
        yield Finding("package", State.FAULT, text, f"pip install 'smalti[{error.extra}]'")
        return
    if store.scheme.packages:
        found = {name: installed_version(name) for name in store.scheme.packages}
        yield Finding("package", State.OK, ", ".join(f"{name} {each}" for name, each in found.items() if each))
    endpoint = store.endpoint()
    if endpoint:
        yield from _check_server(store, endpoint)


def _check_server(store: FsspecStore, endpoint: str) -> Iterator[Finding]:
    is_s3 = "s3" in store.scheme.extra
    bucket = store.root.partition("/")[0]
    authorities = store.authorities()
    route = Route(
        endpoint,
        path=f"/{bucket}" if is_s3 else "/",
        bundle=authorities if isinstance(authorities, str) else None,
        is_verified=authorities is not False,
        given_proxy=store.proxy(),
    )
    yield from check_route(route)
    region = route.headers.get("x-amz-bucket-region")
    if is_s3 and region and endpoint.endswith((".amazonaws.com", ".amazonaws.com.cn")) and region not in endpoint:
        yield Finding(
            "region",
            State.WARNING,
            f"the bucket is in {region}, and requests go to {route.host}: they are slower, and cost more",
            f"export AWS_REGION={region}",
        )


def _check_listing(store: Store) -> Iterator[Finding]:
    """Yield findings about credentials, the bucket, and the right to list."""
    refusal: StoreError | None = None
    is_empty = False
    try:
        is_empty = next(iter(store.list("_versions")), None) is None
    except StoreError as error:
        refusal = error
    answer = _answer_of(refusal)
    source, reason = _login_of(store)
    if answer is not None:
        whose = f"; they come from {source or 'the client'}" if answer[0] == "credentials" else f" ({store.url})"
        yield Finding(answer[0], State.FAULT, f"{answer[1]}{whose}", answer[2])
        return
    if isinstance(refusal, StoreAuthError) and getattr(refusal, "code", "") not in _NO_RIGHT:
        found = split_message(one_line(refusal))[0] + (f"; they come from {source}" if source else reason)
        yield Finding("credentials", State.FAULT, found, _help_of(store))
        return
    if isinstance(store, FsspecStore):
        yield Finding(
            "credentials", State.OK, f"from {source}" if source else "found by the client itself, or none needed"
        )
    if isinstance(refusal, StoreAuthError):
        text = "not allowed with these credentials; reading works without, vacuum and delete do not"
        yield Finding("list", State.WARNING, text, f"grant it (S3: s3:ListBucket on the bucket); {_GRANTS}")
    elif refusal is not None and _is_read_only(store):
        yield Finding("list", State.SKIPPED, "a web server cannot be listed; reading a set needs no listing")
    elif refusal is not None:
        yield finding_of("list", refusal)
    else:
        absent = _absent_bucket(store) if is_empty else None
        yield absent or Finding("list", State.OK, "allowed")


def _answer_of(error: StoreError | None) -> tuple[str, str, str] | None:
    return None if error is None else _ANSWERS.get(str(error.facts.get("code", "")))


def _login_of(store: Store) -> tuple[str, str]:
    """Return the source of the credentials, "" if there is none, and why the client cannot find it."""
    if not isinstance(store, FsspecStore):
        return "", ""
    try:
        return store.login(), ""
    except Exception as error:  # noqa: BLE001 -- of any client library; the requests show whether it matters
        return "", f": {one_line(error)}"


def _help_of(store: Store) -> str:
    return store.scheme.credentials_help if isinstance(store, FsspecStore) else "check the rights of the folder"


def _absent_bucket(store: Store) -> Finding | None:
    """Return a fault if the bucket does not exist; listings of stores do not distinguish it from an empty one."""
    is_absent = False
    try:
        store.get_range(INDEX, 0, 1)
    except StoreNotFound as error:
        is_absent = error.facts.get("code") == "NoSuchBucket"
    except StoreError:
        return None  # a later check reports it
    if not is_absent:
        try:
            store.check_bucket()
        except StoreNotFound:
            is_absent = True
        except StoreError:
            return None  # the right to look it up is not needed
    _, found, remedy = _ANSWERS["NoSuchBucket"]
    return Finding("bucket", State.FAULT, f"{found} ({store.url})", remedy) if is_absent else None


def _check_data_set(store: Store, facts: PlaceFacts) -> Iterator[Finding]:
    try:
        manifest = facts.manifest = load_manifest(store)
    except StoreAuthError as error:
        yield _refused_read(store.locate(INDEX), error)
        return
    except StoreNotFound:
        text = f"no shard set at {store.url}"
        yield Finding("data set", State.WARNING, text, "check the address, unless you are about to write the first")
        yield Finding("read", State.SKIPPED, "no object to try")
        return
    except SmaltiError as error:
        yield finding_of("data set", error, f"run `smalti verify {store.url}`")
        return
    yield Finding("data set", State.OK, _description(manifest))
    yield from _check_shards(store, manifest)


def _description(manifest: Manifest) -> str:
    shards = manifest.shards
    name = f"version {manifest.version}" if manifest.version else "a plain MDS set, without versions"
    text = f"{name}: {manifest.rows:,} samples in {len(shards):,} shards, {byte_text(manifest.num_bytes)}"
    if not len(shards):
        return text
    first = shards[0]
    return f"{text}, {first.format}" + (f" in {first.compression}" if first.zip is not None else "")


def _check_shards(store: Store, manifest: Manifest) -> Iterator[Finding]:
    """Yield whether some shards have their declared sizes, and whether one of them can be read."""
    count = len(manifest.shards)
    if not count:
        yield Finding("read", State.SKIPPED, "the version has no shards")
        return
    step = max(1, -(-count // SHARDS_LOOKED_UP))
    chosen = [manifest.shards[number] for number in range(0, count, step)]
    remedy = f"run `smalti verify {store.url}`; then roll back, or write the version again"
    for shard in chosen:
        key, declared = shard.stored.basename, shard.stored.num_bytes
        try:
            size = store.size(key)
        except StoreNotFound:
            yield Finding("sizes", State.FAULT, f"shard {key} does not exist", remedy)
            return
        except StoreError as error:
            yield finding_of("sizes", error)
            return
        if size != declared:
            yield Finding("sizes", State.FAULT, f"{key} has {size:,} bytes, declared are {declared:,}", remedy)
            return
    yield Finding("sizes", State.OK, f"as declared ({len(chosen):,} of {count:,} shards looked up)")
    try:
        store.get_range(chosen[0].stored.basename, 0, READ_BYTES)
    except StoreError as error:
        yield _refused_read(store.locate(chosen[0].stored.basename), error)
        return
    has_hashes = all(shard.stored.hashes for shard in islice(chosen, 1))
    yield Finding("read", State.OK, "allowed" + ("" if has_hashes else "; the shards declare no hashes, only sizes"))


def _refused_read(where: str, error: StoreError) -> Finding:
    if error.facts.get("code") in _NO_RIGHT:
        remedy = f"grant the right to read objects (S3: s3:GetObject on the objects); {_GRANTS}"
        return Finding("read", State.FAULT, f"not allowed with these credentials: {where}", remedy)
    return finding_of("read", error)


def _is_read_only(store: Store) -> bool:
    return isinstance(store, FsspecStore) and store.scheme.is_read_only


def _check_writing(store: Store, *, write: bool) -> Iterator[Finding]:
    if _is_read_only(store):
        yield Finding("write", State.SKIPPED, "this kind of store is read only")
        return
    if not write:
        yield Finding("write", State.SKIPPED, "not tried", "--write tries it with a small object, which it removes")
        return
    with _removing_new_folders(store):
        yield from _try_writing(store)


@contextmanager
def _removing_new_folders(store: Store) -> Iterator[None]:
    """Remove, at the end, the empty folders that were made inside; object stores have none."""
    folder = store.local_path(PROBE_FOLDER)
    new = [] if folder is None else [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    finally:
        for place in new:
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
