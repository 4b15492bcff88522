"""Checks of a version's content, which read its shards.

Verification: every object exists, with the size, hashes, samples and row hash of the manifest. Leakage: which rows of a
version are in two splits, so that held-out rows are equal, byte for byte, to rows trained on.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from smalti.catalog.manifest import Manifest, has_write_id, row_hash_text
from smalti.catalog.opening import WantedVersion, open_version
from smalti.catalog.sidecars import aligned_shards, columns_of, load_object, objects_of
from smalti.catalog.table.shard_table import block_files_of
from smalti.errors import ChecksumMismatch, FormatError, IndexFileError, StoreAuthError, StoreNotFound, StoreTimeout
from smalti.format import AnyShard, BlockHashes, Shard, ShardInfo, open_shard, parse_compression, verify_file
from smalti.format.index import PARQUET
from smalti.format.reading.batch import OpenOptions
from smalti.format.reading.files import StoredSamples
from smalti.storage import Place, Store, open_store

_MAX_EXAMPLES = 20
_Hashes = npt.NDArray[np.uint64]


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


@dataclass(frozen=True)
class EqualRow:
    """A held-out row that is trained on as well."""

    split: str
    shard: str
    sample: int
    """Its place in the shard."""
    row: dict[str, Any]


@dataclass(frozen=True)
class RowLeakage:
    """The held-out rows of a version."""

    trained_on: str
    """The split that is trained on."""
    held_out: int
    """Rows of the other splits."""
    leaked: int
    """Those of them that are equal to a row that is trained on."""
    examples: tuple[EqualRow, ...]


def find_leaked_rows(store: Store, manifest: Manifest, *, trained_on: str = "train") -> RowLeakage:
    """Return which held-out rows are trained on as well. Reads each shard once or twice, and keeps 8 bytes of a row.

    Args:
        store: of the set.
        manifest: of the version.
        trained_on: name of the split; where there is none, the largest one.

    Raises:
        FormatError: a shard is not what its manifest says.
        StoreError: a shard cannot be read.
    """
    rows: dict[str, int] = {}
    for shard in manifest.shards:
        rows[str(shard.partition)] = rows.get(str(shard.partition), 0) + shard.samples
    trained = trained_on if trained_on in rows else max(rows, key=lambda split: rows[split], default=trained_on)
    others = [shard for shard in manifest.shards if str(shard.partition) != trained]
    held_out = [_hashes_of(store, shard) for shard in others]
    none = np.empty(0, np.uint64)
    wanted = np.unique(np.concatenate([none, *held_out]))
    searched = [shard for shard in manifest.shards if str(shard.partition) == trained and len(wanted)]
    leaks = np.concatenate([none, *(np.intersect1d(wanted, _hashes_of(store, shard)) for shard in searched)])
    leaked = [np.flatnonzero(np.isin(hashes, leaks)) for hashes in held_out]
    return RowLeakage(
        trained_on=trained,
        held_out=sum(map(len, held_out)),
        leaked=sum(map(len, leaked)),
        examples=_examples(store, others, leaked),
    )


def _hashes_of(store: Store, shard: ShardInfo) -> _Hashes:
    with open_checked(store, shard) as opened:
        samples: StoredSamples = opened.stored_samples()
        places = pairwise(samples.ends.tolist())
        return np.array([xxh3_64_intdigest(samples.data[begin:end]) for begin, end in places], np.uint64)


def _examples(store: Store, shards: list[ShardInfo], leaked: list[npt.NDArray[np.int64]]) -> tuple[EqualRow, ...]:
    found: list[EqualRow] = []
    for shard, places in zip(shards, leaked, strict=True):
        chosen = places[: _MAX_EXAMPLES - len(found)].tolist()
        if chosen:
            with open_checked(store, shard) as opened:
                name = shard.stored.basename
                found += (EqualRow(str(shard.partition), name, place, dict(opened[place])) for place in chosen)
    return tuple(found)
