"""Verification of a version: every object exists, with the size, hashes, samples and row hash of the manifest."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from smalti.catalog.manifest import has_write_id, row_hash_text
from smalti.catalog.opening import WantedVersion, open_version
from smalti.catalog.sidecars import aligned_shards, columns_of, load_object, objects_of
from smalti.catalog.table.shard_table import block_files_of
from smalti.errors import ChecksumMismatch, FormatError, IndexFileError, StoreAuthError, StoreNotFound, StoreTimeout
from smalti.format import AnyShard, BlockHashes, Shard, ShardInfo, open_shard, parse_compression, verify_file
from smalti.format.index import PARQUET
from smalti.format.reading.batch import OpenOptions
from smalti.storage import Place, Store, open_store


@contextmanager
def open_checked(store: Store, shard: ShardInfo, *, is_as_listed: bool = True) -> Iterator[AnyShard]:
    """Fetch a shard unless it is local, verify and unpack it, and yield it opened; copies are removed at the end.

    `is_as_listed` is False if the caller gave columns other encodings than the index, to read damaged ones.

    Raises:
        ChecksumMismatch: bytes differ from the hashes in the manifest.
        FormatError: the shard is damaged or contradicts the manifest.
        StoreNotFound: a file of it is missing.
    """
    with tempfile.TemporaryDirectory(prefix="smalti-shard-") as folder:
        files = _raw_files(store, shard, Path(folder))
        is_own = is_as_listed and has_write_id(shard.raw.basename)
        opened = open_shard(files, shard, OpenOptions(allow_unsafe_types=True, check_config=is_own))
        try:
            yield opened
        finally:
            opened.close()


def _check_parquet(store: Store, shard: ShardInfo) -> None:
    """Verify a Parquet file, and compare its number of rows with the manifest's.

    Raises:
        ChecksumMismatch, FormatError, StoreNotFound: as for `open_checked`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="smalti-parquet-") as folder:
        (path,) = _raw_files(store, shard, Path(folder))
        try:
            rows = pq.read_metadata(path).num_rows
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{store.locate(shard.raw.basename)} is no Parquet file: {str(error)[:200]}") from error
    if rows != shard.samples:
        raise FormatError(
            f"{store.locate(shard.raw.basename)} has {rows} rows, the manifest says {shard.samples}",
            key=shard.raw.basename,
        )


def _raw_files(store: Store, shard: ShardInfo, folder: Path) -> list[Path]:
    """Return the verified uncompressed files of a shard."""
    compression = parse_compression(shard.compression)
    paths = []
    for place, (stored, raw) in enumerate(zip(shard.stored_files, shard.raw_files, strict=True)):
        where = store.locate(stored.basename)
        path = store.local_path(stored.basename)
        if path is None:
            path = folder / f"stored-{place}"
            with path.open("wb") as out:
                store.fetch(stored.basename, out)
        try:
            verify_file(path, stored, what=where)
        except FileNotFoundError as error:
            raise StoreNotFound(f"{where} does not exist", key=stored.basename, url=store.url) from error
        if shard.zip is not None:
            if compression is None:
                raise FormatError(f"{where} is compressed, but its manifest names no compression", key=stored.basename)
            unpacked = folder / f"raw-{place}"
            with unpacked.open("wb") as out:
                compression.decompress_file(path, out, raw.num_bytes)
            verify_file(unpacked, raw, what=f"{where}, unpacked")
            path = unpacked
        paths.append(path)
    return paths


@dataclass(frozen=True)
class VerifyProblem:
    """One problem that a verification found."""

    key: str
    """The object; the address of the set for problems of the whole version."""
    kind: str
    """missing, size, checksum, content or rows."""
    message: str


@dataclass(frozen=True)
class VerifyReport:
    """The result of a verification."""

    version: int
    digest: str
    deep: bool
    """True if contents were read; False if only sizes were looked up."""
    num_shards: int
    """Number of checked shards, including those of added columns."""
    num_bytes: int
    """Bytes of the shards as stored, from the manifest."""
    rows: int
    problems: tuple[VerifyProblem, ...]
    row_hash: str = ""
    """Row hash of the samples that were read; empty if not all of them were."""
    declared_row_hash: str = ""
    """Row hash in the manifest; empty if its writer did not record one."""

    @property
    def ok(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    def summary(self) -> str:
        """Return a one-line summary."""
        how = "contents" if self.deep else "sizes"
        found = "no problem" if self.ok else f"{len(self.problems)} problems, the first: {self.problems[0].message}"
        what = f"{how} of {self.num_shards} shards, {self.rows} samples checked"
        return f"version {self.version} ({self.digest[:12]}): {what}; {found}"


def verify(
    place: Place,
    *,
    version: int | None = None,
    tag: str | None = None,
    deep: bool = True,
    only: Callable[[ShardInfo], bool] | None = None,
    on_shard: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Verify one version, the newest by default; reads every byte if `deep`, and changes nothing.

    Args:
        place: The root of the set: a URL, folder or store.
        version: The number of the version.
        tag: Its tag, instead of the number.
        deep: Read and hash every object, unpack compressed ones, open each shard, and compute the row hash; else
            compare sizes only.
        only: Which shards to check; by default all, and only then their row hash is compared with the manifest's.
        on_shard: Called with (done, total) after each shard.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version or tag.
        IndexFileError: the manifest itself cannot be trusted.
        StoreAuthError: the credentials were refused, so that there is no result.
        StoreTimeout: the store does not answer, so that there is no result.

    Examples:
        >>> report = verify("s3://bucket/users")
        >>> report.ok, report.rows, report.problems
        (True, 15, ())
    """
    store = open_store(place)
    manifest = open_version(store, WantedVersion(version, tag, by_index=False))
    added = [aligned_shards(store, entry, manifest.shards) for entry in columns_of(manifest.sidecars)]
    chosen = [[shard for shard in shards if only is None or only(shard)] for shards in (manifest.shards, *added)]
    total = sum(map(len, chosen))
    run = _Verification(store, deep=deep, on_shard=on_shard, total=total)
    row_hash = run.check(chosen[0])
    for shards in chosen[1:]:
        run.check(shards)
    if not deep:
        run.check_block_files(sorted(set().union(*map(block_files_of, chosen))))
    for entry in objects_of(manifest.sidecars) if deep and only is None else ():
        try:
            load_object(store, entry)
        except IndexFileError as error:  # noqa: PERF203 -- few objects
            run.problems.append(VerifyProblem(str(entry.get("key")), "content", str(error)))
    is_whole = len(chosen[0]) == len(manifest.shards)
    if deep and is_whole and not run.problems and manifest.row_hash not in {"", row_hash}:
        message = (
            f"version {manifest.version} of {store.url}: every shard is as its manifest says, but their samples are "
            f"not those that were written: row hash expected {manifest.row_hash}, found {row_hash}; write the set "
            "again, or roll back"
        )
        run.problems.append(VerifyProblem(store.url, "rows", message))
    is_read = run.has_read_samples and is_whole
    return VerifyReport(
        version=manifest.version,
        digest=manifest.digest,
        deep=deep,
        num_shards=total,
        num_bytes=manifest.num_bytes,
        rows=sum(shard.samples for shard in chosen[0]),
        problems=tuple(run.problems),
        row_hash=row_hash if is_read and all(each.kind == "rows" for each in run.problems) else "",
        declared_row_hash=manifest.row_hash,
    )


class _Verification:
    """A running verification, with the problems found so far."""

    def __init__(self, store: Store, *, deep: bool, on_shard: Callable[[int, int], None] | None, total: int) -> None:
        self.problems: list[VerifyProblem] = []
        self.has_read_samples = deep
        self._store, self._deep, self._on_shard, self._total, self._done = store, deep, on_shard, total, 0

    def check(self, shards: Iterable[ShardInfo]) -> str:
        """Check these shards, and return the row hash of those without a problem."""
        rows = 0
        for shard in shards:
            found = self._check(shard)
            if isinstance(found, VerifyProblem):
                self.problems.append(found)
            else:
                rows += found
            self._done += 1
            if self._on_shard is not None:
                self._on_shard(self._done, self._total)
        return row_hash_text(rows)

    def _check_blocks(self, shard: ShardInfo, opened: AnyShard) -> None:
        """Compare the block list of a shard with its bytes, which were verified; record a problem."""
        if shard.blocks is None or not isinstance(opened, Shard):
            return
        key = shard.blocks.file
        try:
            data = self._store.get_range(key, *shard.blocks.span(shard.raw.num_bytes))
            hashes = BlockHashes(data, shard.blocks, shard.raw.num_bytes, what=self._store.locate(shard.raw.basename))
            hashes.verify(memoryview(opened.mapped().map), 0)
        except StoreNotFound as error:
            self._note(VerifyProblem(key, "missing", f"{error}; shards are read whole without it"))
        except ChecksumMismatch as error:
            self._note(VerifyProblem(key, "checksum", f"{error}; the shard itself is right"))

    def check_block_files(self, keys: Iterable[str]) -> None:
        """Check that the files with block lists exist."""
        for key in keys:
            try:
                self._store.size(key)
            except StoreNotFound as error:  # noqa: PERF203 -- few objects
                self._note(VerifyProblem(key, "missing", f"{error}; shards are read whole without it"))

    def _note(self, problem: VerifyProblem) -> None:
        if problem.kind != "missing" or problem not in self.problems:  # of a missing file each shard has the same
            self.problems.append(problem)

    def _check(self, shard: ShardInfo) -> VerifyProblem | int:
        """Return a problem, or the sum of the hashes of the samples (0 if they were not read)."""
        store, key = self._store, shard.stored.basename
        try:
            for file in shard.stored_files:
                key = file.basename
                found = store.size(key)
                if found != file.num_bytes:
                    message = f"{store.locate(key)} has {found} bytes, the manifest says {file.num_bytes}"
                    return VerifyProblem(key, "size", message)
            key = shard.stored.basename
            if self._deep and shard.format == PARQUET:
                _check_parquet(store, shard)
                self.has_read_samples = False
            elif self._deep:
                with open_checked(store, shard) as opened:
                    self._check_blocks(shard, opened)
                    return opened.stored_samples().row_hash()
        except StoreNotFound as error:
            return VerifyProblem(key, "missing", str(error))
        except (StoreAuthError, StoreTimeout):
            raise
        except ChecksumMismatch as error:
            return VerifyProblem(key, "checksum", str(error))
        except FormatError as error:
            return VerifyProblem(key, "content", str(error))
        return 0
