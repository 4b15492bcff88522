"""Records of deleted samples, so that an incremental run does not bring them back unnoticed.

Every header carries an entry for each deletion in this and earlier versions:

    {"version": 7, "write_id": "...", "by": "ids", "samples": 12, "purged": true,
     "key": "<write id>/erased.arrow", "sha256": "...", "salt": "..."}

`version` is a number of this store, `write_id` that of the deletion: a copy in another store keeps it.

The entry does not contain what was looked for, which may be personal data. Where the version's source files are known,
the object lists those that had deleted samples, each as a keyed BLAKE2b hash of its path. Such a file must not be
converted again: it may still contain what was deleted.
"""

import hashlib
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smalti.catalog.header import Header
from smalti.catalog.sidecars import load_object, store_object
from smalti.catalog.table.arrow import ipc_file
from smalti.errors import IndexFileError
from smalti.storage import Store

ERASED = "erased"
_HASH_BYTES = 16


@dataclass(frozen=True)
class Erasure:
    """One deletion of samples."""

    by: str
    """The kind of choice of the samples: where, ids, expression, function or positions."""
    samples: int
    """Number of samples that were deleted."""
    purged: bool
    """True if older versions with these samples were to be removed too."""
    paths: Sequence[str] = ()
    """Source files of deleted samples, as far as they are known."""

    def store(self, store: Store, write_id: str) -> dict[str, Any]:
        """Put the hashes of the paths below the folder of the write, and return the entry for the header."""
        facts = {"by": self.by, "samples": self.samples, "purged": self.purged}
        if not self.paths:
            return facts
        import pyarrow as pa

        salt = secrets.token_bytes(_HASH_BYTES)
        hashes = sorted({_hash(salt, path) for path in self.paths})
        data = ipc_file(pa.table({"file": pa.array(hashes, pa.binary(_HASH_BYTES))}))
        entry = store_object(store, ERASED, f"{write_id}/{ERASED}.arrow", data, salt=salt.hex())
        return {**facts, **{name: entry[name] for name in ("key", "sha256", "salt")}}


def erased_paths(store: Store, header: Header, paths: Iterable[str]) -> list[str]:
    """Return those of these source files that had samples which were deleted in this version or an earlier one.

    Raises:
        IndexFileError: a record is missing, or not the one that was written.
    """
    wanted = list(paths)
    found: set[str] = set()
    for entry in header.erased if wanted else ():
        if "key" in entry:
            salt, hashes = _load(store, entry)
            found.update(path for path in wanted if _hash(salt, path) in hashes)
    return [path for path in wanted if path in found]


def kept_after_rollback(newest: Header, target: Header) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of a version that rolls back to `target`.

    A deletion after the target that was not purged is undone by the rollback, on request; the others still hold.
    """
    return tuple(
        entry for entry in newest.erased if entry.get("purged") or int(entry.get("version", 0)) <= target.version
    )


def joined_erasures(
    before: Iterable[Mapping[str, Any]], added: Iterable[Mapping[str, Any]], *, version: int, write_id: str
) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of version `version`: those of its parent, and those that it adds, each deletion once."""
    found = {erasure_id(entry): dict(entry) for entry in before}
    for entry in added:
        new = {"write_id": write_id, **entry, "version": version}
        known = found.setdefault(erasure_id(new), new)
        known["purged"] = bool(known.get("purged") or entry.get("purged"))
    return tuple(found.values())


def purged_erasures(newest: Header, retired: Collection[int]) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of a version that retires these: deletions after one of them cannot be undone any more."""
    return tuple(
        {**entry, "purged": True} if any(version < int(entry.get("version", 0)) for version in retired) else entry
        for entry in newest.erased
    )


def erasure_id(entry: Mapping[str, Any]) -> str:
    """Return the write id of a deletion, which identifies it in every store."""
    return str(entry.get("write_id", ""))


def erased_keys(header: Header) -> list[str]:
    """Return the keys of the objects with source files of deleted samples."""
    return [str(entry["key"]) for entry in header.erased if "key" in entry]


def last_erasure(header: Header) -> int:
    """Return the version of the last deletion; 0 if there was none. Older versions may hold deleted samples."""
    return max((int(entry.get("version", 0)) for entry in header.erased), default=0)


def _hash(salt: bytes, path: str) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), key=salt, digest_size=_HASH_BYTES).digest()


def _load(store: Store, entry: Mapping[str, Any]) -> tuple[bytes, frozenset[bytes]]:
    import pyarrow as pa

    data = load_object(store, entry)
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        return bytes.fromhex(str(entry["salt"])), frozenset(table.column("file").to_pylist())
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        where = store.locate(str(entry["key"]))
        raise IndexFileError(f"{where} is no record of deleted samples: {str(error)[:200]}") from error
