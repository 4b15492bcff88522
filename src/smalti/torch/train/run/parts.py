"""Files in a checkpoint beside its state: each rank gives the files that it has, and the checkpoint holds them all.

Ranks may give disjoint files, such as the shards of a sharded model. They may also give the same ones, because they
share a folder or because each wrote an equal copy; those are taken once.
"""

import hashlib
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smalti.errors import CheckpointError
from smalti.regular_files import open_regular
from smalti.storage.local import sync_path
from smalti.storage.store import check_key

FILES = "files"
"""Folder of these files in a checkpoint."""
_CHUNK_BYTES = 1 << 20  # read at once to compute a file's hash


@dataclass(frozen=True)
class Given:
    """A file that a rank gives."""

    num_bytes: int
    identity: tuple[str, int, int]
    """Host, device and inode: equal for ranks that see one file."""


@dataclass(frozen=True)
class Written:
    """A file as it lies in the checkpoint."""

    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class Parts:
    """The contributions of the ranks to a checkpoint that is not yet published."""

    staging: Path
    """Hidden local folder of this rank, whose folder `FILES` has the files of this rank."""
    written: Mapping[str, Written] = field(default_factory=dict)
    """The files of all ranks."""


def given_files(source: "str | Path | None") -> dict[str, Given]:
    """Return the files of a folder by relative name, or a single file by its name.

    Raises:
        CheckpointError: there is nothing at `source`, or a name or a kind of file cannot be stored.
    """
    if source is None:
        return {}
    root = Path(source)
    try:
        if root.is_file():
            return {root.name: _given(root)}
        if not root.is_dir():
            raise CheckpointError(f"`files` is {root}, and there is no file or folder; write it before it is saved.")
        return {_name_of(path, root): _given(path) for path in sorted(root.rglob("*")) if _is_stored(path)}
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"`files` {root} cannot be read: {error}", path=str(root)) from error


def own_names(offers: Sequence[Mapping[str, Given]], rank: int) -> list[str]:
    """Return the names that a rank contributes: those that no lower rank gives."""
    return [name for name in offers[rank] if not any(name in offer for offer in offers[:rank])]


def doubtful_names(offers: Sequence[Mapping[str, Given]]) -> list[str]:
    """Return the names that several ranks give, of files that are not one and the same."""
    identities: dict[str, set[tuple[str, int, int]]] = {}
    for offer in offers:
        for name, given in offer.items():
            identities.setdefault(name, set()).add(given.identity)
    return sorted(name for name, found in identities.items() if len(found) > 1)


def hashes_of(source: "str | Path", names: Iterable[str]) -> dict[str, str]:
    """Return the hashes of files that `given_files` found.

    Raises:
        CheckpointError: one cannot be read.
    """
    try:
        return {name: sha256_of(_path_of(source, name)) for name in names}
    except OSError as error:
        raise CheckpointError(f"`files` {source} cannot be read: {error}", path=str(source)) from error


def check_equal(hashes: Sequence[Mapping[str, str]]) -> None:
    """Check that ranks which give a file of one name give equal bytes.

    Raises:
        CheckpointError: they do not; the message names the file and the ranks.
    """
    for name in sorted({name for found in hashes for name in found}):
        by_rank = {rank: found[name] for rank, found in enumerate(hashes) if name in found}
        if len(set(by_rank.values())) > 1:
            raise CheckpointError(
                f"the ranks {sorted(by_rank)} give different files named {name!r}, and the checkpoint can hold one: "
                "put the rank into the names, or let one rank give it.",
                name=name,
            )


def copy_files(source: "str | Path | None", names: Iterable[str], staging: Path) -> None:
    """Copy files into a staging folder. They are not flushed yet.

    Raises:
        CheckpointError: a file cannot be read or written.
    """
    try:
        for name in names:
            target = staging / FILES / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_path_of(source or "", name), target)
    except OSError as error:
        raise CheckpointError(
            f"the files of a checkpoint cannot be copied from {source} to {staging}: {error}. Earlier checkpoints are "
            "untouched; make room or mend the disk and start the run again.",
            path=str(staging),
        ) from error


def flush_files(staging: Path, names: Iterable[str]) -> dict[str, Written]:
    """Flush copied files to the disk, and return their hashes and sizes as read back.

    Raises:
        OSError: one cannot be read or flushed.
    """
    written = {}
    for name in names:
        path = staging / FILES / name
        sync_path(path)
        written[name] = Written(sha256_of(path), path.stat().st_size)
    return written


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _given(path: Path) -> Given:
    status = path.stat()
    return Given(status.st_size, (socket.gethostname(), status.st_dev, status.st_ino))


def _name_of(path: Path, root: Path) -> str:
    return check_key(path.relative_to(root).as_posix())


def _path_of(source: "str | Path", name: str) -> Path:
    root = Path(source)
    return root if root.is_file() else root / name


def _is_stored(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return False
    if not path.is_file():
        raise CheckpointError(f"{path} is neither a file nor a folder; a checkpoint holds files.", path=str(path))
    return True
