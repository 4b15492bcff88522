"""Checking that a version is what it says: every object there, of its size, with its hashes and sample count."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from smalti.catalog.manifest import Manifest
from smalti.catalog.reading import load_from_table
from smalti.errors import ChecksumMismatch, FormatError, StoreAuthError, StoreNotFound, StoreTimeout
from smalti.format import ShardInfo, open_shard, parse_compression, verify_file
from smalti.storage import Place, Store, open_store


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    key: str
    kind: str
    """missing, size, checksum or content."""
    message: str


@dataclass(frozen=True)
class VerifyReport:
    """What a verification saw."""

    version: int
    digest: str
    deep: bool
    """Whether contents were read, or only sizes looked up."""
    num_shards: int
    num_bytes: int
    """Bytes of the shards as stored, by the manifest."""
    rows: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def summary(self) -> str:
        """One line for people."""
        how = "contents" if self.deep else "sizes"
        found = "no problem" if self.ok else f"{len(self.problems)} problems, the first: {self.problems[0].message}"
        what = f"{how} of {self.num_shards} shards, {self.rows} samples checked"
        return f"version {self.version} ({self.digest[:12]}): {what}; {found}"


def verify(
    place: Place, *, version: int | None = None, deep: bool = True, on_shard: Callable[[int, int], None] | None = None
) -> VerifyReport:
    """A report on one version, the newest by default; reads every byte when `deep`, changes nothing.

    Args:
        place: The root of the set: a URL, folder or store.
        version: Which one.
        deep: Read and hash every object, unpack compressed ones, open each shard; else compare sizes only.
        on_shard: Called with (done, total) after each shard.

    Raises:
        StoreNotFound: there is no set.
        IndexFileError: the manifest itself cannot be trusted.
        StoreAuthError: the credentials were refused: nothing can be said.
        StoreTimeout: the store does not answer: nothing can be said.
    """
    store = open_store(place)
    manifest = load_from_table(store, version)
    problems: list[Problem] = []
    for done, shard in enumerate(manifest.shards, start=1):
        problem = _check(store, shard, deep=deep)
        if problem is not None:
            problems.append(problem)
        if on_shard is not None:
            on_shard(done, len(manifest.shards))
    return _report(manifest, problems, deep=deep)


def _report(manifest: Manifest, problems: list[Problem], *, deep: bool) -> VerifyReport:
    return VerifyReport(
        version=manifest.version,
        digest=manifest.digest,
        deep=deep,
        num_shards=len(manifest.shards),
        num_bytes=manifest.num_bytes,
        rows=manifest.rows,
        problems=tuple(problems),
    )


def _check(store: Store, shard: ShardInfo, *, deep: bool) -> Problem | None:
    key = shard.stored.basename
    try:
        for file in shard.stored_files:
            key = file.basename
            found = store.size(key)
            if found != file.num_bytes:
                message = f"{store.locate(key)} has {found} bytes, the manifest says {file.num_bytes}"
                return Problem(key, "size", message)
        if deep:
            key = shard.stored.basename
            with tempfile.TemporaryDirectory(prefix="smalti-verify-") as folder:
                _check_content(store, shard, Path(folder))
    except StoreNotFound as error:
        return Problem(key, "missing", str(error))
    except (StoreAuthError, StoreTimeout):
        raise
    except ChecksumMismatch as error:
        return Problem(key, "checksum", str(error))
    except FormatError as error:
        return Problem(key, "content", str(error))
    return None


def _check_content(store: Store, shard: ShardInfo, folder: Path) -> None:
    """Raise where bytes differ from what the manifest says."""
    compression = parse_compression(shard.compression)
    paths = []
    for place, (stored, raw) in enumerate(zip(shard.stored_files, shard.raw_files, strict=True)):
        where = store.locate(stored.basename)
        path = store.local_path(stored.basename)
        if path is None:
            path = folder / f"stored-{place}"
            with path.open("wb") as out:
                store.fetch(stored.basename, out)
        verify_file(path, stored, what=where)
        if shard.zip is not None:
            if compression is None:
                raise FormatError(f"{where} is compressed, but its manifest names no compression", key=stored.basename)
            unpacked = folder / f"raw-{place}"
            with unpacked.open("wb") as out:
                compression.decompress_file(path, out, raw.num_bytes)
            verify_file(unpacked, raw, what=f"{where}, unpacked")
            path = unpacked
        paths.append(path)
    open_shard(paths, shard, allow_unsafe_types=True).close()
