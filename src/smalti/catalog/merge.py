"""`merge_index`: one index file for shard sets that many writers wrote below one root, with MosaicML's interface.

Intended behaviour; anything else is a bug:
1. Every index file is checked as strictly as when it is opened, and every file that it names must be in the store with
   its declared size. One listing of the root is enough for that, however many files there are.
2. Names become relative to the root, at any depth. A file that two index files name is refused.
3. Index files without shards, written for empty partitions, add nothing.
4. The merged index file is created at the root by one put; the index files that it was made from stay. An index file
   at the root is replaced and never merged into itself; one that shows versions published by Smalti is refused.
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from smalti.catalog.index import check_index_size, peek_index
from smalti.catalog.manifest import FOLDER, INDEX
from smalti.errors import ArgumentError, ArgumentTypeError, CatalogError, StoreTimeout
from smalti.format import MAX_INDEX_BYTES, ShardInfo, emit_index, parse_index
from smalti.storage import Place, Store, open_store

MAX_READS = 16
"""Index files read at the same time."""

Out = Place | tuple[Place, Place]


@dataclass(frozen=True)
class _IndexFile:
    """One index file to merge."""

    folder: str
    """Its folder below the root, which is also that of its shards; "" is the root."""
    store: Store
    key: str
    """Its key in `store`, which is the root or the folder of local copies."""


def merge_index(
    *args: Any,
    index_file_urls: Sequence[str | tuple[str, str]] | None = None,
    out: Out | None = None,
    keep_local: bool = True,
    download_timeout: float = 60,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write the index file of a set that many writers wrote below one root, each with an index file of its own.

        merge_index("s3://bucket/set")                        # all index files below the root
        merge_index(["s3://bucket/set/1/index.json", ...], "s3://bucket/set")     # these

    The positional orders are `(out, keep_local, download_timeout)` and `(index_file_urls, out, keep_local,
    download_timeout)`; every argument may also be given by name. Partitions are merged in the order of the list, or
    sorted by name with numbers compared by value. Blocks.

    Args:
        *args: The arguments below by position.
        index_file_urls: Addresses of index files, all below `out`; each may be a pair (local, remote), of which the
            local one is read if it exists.
        out: The root: a folder or URL; or a pair (local, remote), of which the remote one is the root.
        keep_local: With a pair, whether the merged index file is also put in the local folder. Nothing is deleted.
        download_timeout: Longest time in seconds between the arrivals of two index files.
        storage_options: For the file system of the URL.

    Raises:
        CatalogError: No index file is there, one lies outside the root, a file is named twice, is missing or has
            another size, or the root holds versions that Smalti published.
        IndexFileError: An index file cannot be trusted.
        StoreError: The store failed.
        TypeError: The arguments are of neither form.

    Examples:
        >>> for part in range(2):  # in as many processes
        ...     with MDSWriter(out=f"s3://bucket/set/{part}", columns={"id": "int"}) as writer:
        ...         writer.write({"id": part})
        >>> merge_index("s3://bucket/set")
        >>> smalti.open_dataset("s3://bucket/set").size
        2
    """
    urls, target, keep_local, timeout = _parse_arguments(args, index_file_urls, out, keep_local, download_timeout)
    places = target if isinstance(target, tuple) else (None, target)
    local, root = None if places[0] is None else open_store(places[0]), open_store(places[1], storage_options)
    found = {info.key: info.num_bytes for info in root.list()}
    _check_unversioned(root, found)
    files = _below(root, found) if urls is None else _unique_index_files(urls, root, local)
    for file in files:
        num_bytes = found.get(file.key) if file.store is root else file.store.size(file.key)
        where = file.store.locate(file.key)
        if num_bytes is None:
            raise CatalogError(f"{where} is not there; check the address", key=file.key)
        check_index_size(num_bytes, where)
    shards = _read_all(files, root, float(timeout))
    _check_files(shards, found, root)
    _check_keeps(shards, found, root)
    data = emit_index(shards)
    check_index_size(len(data), f"{root.locate(INDEX)}, merged")
    root.put(INDEX, data)
    if local is not None and keep_local:
        local.put(INDEX, data)


def _parse_arguments(
    args: tuple[Any, ...], urls: Any, out: Any, keep_local: Any, timeout: Any
) -> tuple[Sequence[Any] | None, Out, bool, float]:
    """Return the index file URLs, the root, `keep_local` and the timeout, given by position or by name."""
    rest = list(args)
    if rest and isinstance(rest[0], list) and urls is None:
        urls = rest.pop(0)
    if rest and out is None:
        out = rest.pop(0)
    keep_local = rest.pop(0) if rest else keep_local
    timeout = rest.pop(0) if rest else timeout
    if rest or out is None or isinstance(out, list) or isinstance(urls, str) or type(keep_local) is not bool:
        raise ArgumentTypeError(
            "merge_index takes (out, keep_local, download_timeout) or (index_file_urls, out, keep_local, "
            "download_timeout), where index_file_urls is a list and out an address or a pair of them"
        )
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise ArgumentError(f"`download_timeout` is {timeout!r}; expected a positive number of seconds")
    return urls, out, keep_local, timeout


def _check_unversioned(root: Store, found: Mapping[str, int]) -> None:
    shown = peek_index(root) if INDEX in found else None
    has_versions = any(key.startswith(f"{FOLDER}/") for key in found)
    if has_versions or (shown is not None and "version" in (shown.extra or {})):
        raise CatalogError(
            f"{root.url} holds a set that Smalti published: its {INDEX} shows the newest version already, and merging "
            "would hide it. Open it as it is; to add data publish with mode 'append'",
            url=root.url,
        )


def _below(root: Store, found: Mapping[str, int]) -> list[_IndexFile]:
    """Return the index files below the root, sorted by the names of their folders, without the root's own."""
    folders = {key.removesuffix(f"/{INDEX}") for key in found if key.endswith(f"/{INDEX}")}
    if not folders:
        raise CatalogError(f"{root.url}: there is no {INDEX} in any folder below it; check the address", url=root.url)
    chosen = sorted((folder for folder in folders if not _is_split(root, folder, folders)), key=_natural_key)
    return [_IndexFile(folder, root, f"{folder}/{INDEX}") for folder in chosen]


def _is_split(root: Store, folder: str, folders: set[str]) -> bool:
    """Return whether the folder is a split of a set that Smalti wrote, whose index file names the same shards."""
    if not any(str(parent) in folders for parent in PurePosixPath(folder).parents):
        return False
    shown = peek_index(root.child(folder))
    return shown is not None and shown.extra is not None and shown.extra.get("split") is not None


def _natural_key(folder: str) -> list[tuple[str, int]]:
    """Return a sort key that puts part 9 before part 10."""
    return [(text, int(digits) if digits else -1) for text, digits in re.findall(r"(\D*)(\d{0,18})", folder)]


def _unique_index_files(urls: Sequence[Any], root: Store, local: Store | None) -> list[_IndexFile]:
    """Return the index files of a list, each once."""
    files: dict[str, _IndexFile] = {}
    for url in urls:
        options = tuple(url) if isinstance(url, tuple | list) else (url,)
        file = next((found for one in options if (found := _find_index_file(str(one).strip(), root, local))), None)
        if file is None:
            raise CatalogError(
                f"{options[-1]} does not lie below {root.url}: a set's shards lie below its index file; give the "
                "common root as `out`",
                url=str(options[-1]),
            )
        files.setdefault(f"{file.folder}/{file.key.rpartition('/')[2]}", file)
    if not files:
        raise CatalogError("`index_file_urls` is empty: there is nothing to merge")
    return list(files.values())


def _find_index_file(url: str, root: Store, local: Store | None) -> _IndexFile | None:
    """Return the index file at this address; None if it is outside the roots, or a local copy that does not exist."""
    parent, _, name = url.rstrip("/").rpartition("/")
    for store in (root, local):
        if store is None or not name:
            continue
        base = store.url.rstrip("/")
        is_plain = f"{parent}/".startswith(f"{base}/") and ".." not in parent.split("/")
        folder = parent if is_plain else open_store(parent or ".").url
        if f"{folder}/".startswith(f"{base}/"):
            below = folder[len(base) :].strip("/")
            key = f"{below}/{name}" if below else name
            if store is root or store.exists(key):
                return _IndexFile(below, store, key)
    return None


def _read_all(files: Sequence[_IndexFile], root: Store, timeout: float) -> list[ShardInfo]:
    """Return the shards of all index files in order, with names relative to the root."""

    def shards_in(file: _IndexFile) -> list[ShardInfo]:
        shards, _ = parse_index(file.store.get_limited(file.key, MAX_INDEX_BYTES), where=file.store.locate(file.key))
        return [shard.with_prefix(file.folder) for shard in shards]

    pool = ThreadPoolExecutor(min(MAX_READS, len(files)), thread_name_prefix="smalti-merge")
    try:
        reads = [pool.submit(shards_in, file) for file in files]
        pending: set[Future[list[ShardInfo]]] = set(reads)
        while pending:
            done, pending = wait(pending, timeout=timeout, return_when=FIRST_COMPLETED)
            if not done:
                raise StoreTimeout(
                    f"{root.url}: no index file arrived within {timeout:.0f} s ({len(pending)} of {len(files)} are "
                    "missing); check the store and the network, or raise `download_timeout`",
                    url=root.url,
                )
            for read in done:
                read.result()
        return [shard for read in reads for shard in read.result()]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _check_files(shards: Sequence[ShardInfo], found: Mapping[str, int], root: Store) -> None:
    """Check that every file is named once, and is in the store with its size."""
    seen: set[str] = set()
    for shard in shards:
        for name in shard.file_names:
            if name in seen:
                raise CatalogError(
                    f"{root.locate(name)} is named by two index files: one of them was merged before, or copied. Merge "
                    "those of the writers alone, as a list",
                    key=name,
                )
            seen.add(name)
        for file in shard.stored_files:
            there = found.get(file.basename)
            if there != file.num_bytes:
                state = "is not there" if there is None else f"has {there} bytes"
                raise CatalogError(
                    f"{root.locate(file.basename)} {state}, and its index file says {file.num_bytes} bytes; nothing "
                    "was merged. Write that part again, or leave its index file out",
                    key=file.basename,
                )


def _check_keeps(shards: Sequence[ShardInfo], found: Mapping[str, int], root: Store) -> None:
    """Check that replacing the root's index file loses no shard in the root folder that only this file names."""
    if INDEX not in found:
        return
    check_index_size(found[INDEX], root.locate(INDEX))
    before, _ = parse_index(root.get_limited(INDEX, MAX_INDEX_BYTES), where=root.locate(INDEX))
    merged = {shard.raw.basename for shard in shards}
    for shard in before:
        name = shard.stored.basename
        if "/" not in name and name in found and shard.raw.basename not in merged:
            raise CatalogError(
                f"{root.locate(INDEX)} is the index file of shards beside it, such as {name}, which the merged one "
                "would not name; move them, with their index file, to a folder of their own",
                key=INDEX,
            )
