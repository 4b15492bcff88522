"""The files of a source of data, and what is left out of it: counted by reason, and named.

Symbolic links are followed, to files and to folders; the same folder may be reached by several links. Left out are
hidden files, links that lead nowhere or back to a folder that contains them, pipes, sockets and devices, and names that
no store can have. A folder that may not be listed is an error. `Store.list`, for shard sets, follows no links to
folders: what is outside of a set is neither read nor removed.
"""

import errno
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from smalti.errors import SourceWarning, StoreAuthError, StoreError
from smalti.storage import ObjectInfo, Store
from smalti.storage.store import MAX_KEY_BYTES, check_key
from smalti.texts import printable

HIDDEN = "hidden or of the system"
OTHER_KIND = "of another kind"
MAX_NESTED_LINKS = 1_000
"""Links to folders that one listing follows in folders that other links lead to: they can make endlessly many paths."""
_USUAL = (HIDDEN, OTHER_KIND)
_MAX_NAMES = 3
_MAX_SHOWN = 200  # characters of a name
_GONE = {errno.ENOENT, errno.ENOTDIR}


@dataclass
class LeftOut:
    """Files, links and folders that a listing leaves out: number and first names by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    """The first names of each reason, for messages."""

    def add(self, reason: str, name: str) -> None:
        """Count one file, link or folder."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        first = self.names.setdefault(reason, [])
        if len(first) < _MAX_NAMES:
            shown = printable(name)
            first.append(shown if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN - 3]}...")

    @classmethod
    def joined(cls, parts: Iterable["LeftOut"]) -> "LeftOut":
        """Return what several listings leave out; the same object counts once."""
        joint = cls()
        for part in {id(part): part for part in parts}.values():
            for reason, count in part.counts.items():
                joint.counts[reason] = joint.counts.get(reason, 0) + count
                joint.names[reason] = [*joint.names.get(reason, ()), *part.names[reason]][:_MAX_NAMES]
        return joint

    def to_dict(self) -> dict[str, Any]:
        """Return number and first names by reason (JSON)."""
        return {reason: {"files": count, "names": self.names[reason]} for reason, count in sorted(self.counts.items())}

    def __str__(self) -> str:
        return describe_left_out(self.to_dict())

    def warn(self, source: str) -> None:
        """Warn if anything is left out besides hidden files and those of another kind.

        Args:
            source: address for the message, without secrets.
        """
        shown = {reason: facts for reason, facts in self.to_dict().items() if reason not in _USUAL}
        if shown:
            warnings.warn(f"{source}: left out: {describe_left_out(shown)}", SourceWarning, stacklevel=3)


def describe_left_out(facts: dict[str, Any]) -> str:
    """Return `LeftOut.to_dict` as one line of text."""
    return "; ".join(
        f"{found['files']:,} {reason} ({', '.join(found['names'])}{', ...' if found['files'] > _MAX_NAMES else ''})"
        for reason, found in facts.items()
    )


def list_source(
    store: Store, is_hidden: Callable[[str], bool], is_wanted: Callable[[str], bool] | None = None
) -> tuple[tuple[ObjectInfo, ...], LeftOut]:
    """Return the files below a store's root that are wanted and not hidden, sorted by key, and what is left out.

    A hidden folder is left out as a whole.

    Args:
        store: where the files are.
        is_hidden: says whether a file or folder of this name, without the folder above it, is hidden.
        is_wanted: says whether a file with this key is looked for at all; others are not counted as left out.

    Raises:
        StoreAuthError: a folder may not be listed, or the credentials are missing or refused.
        StoreError: the store cannot be listed.
    """
    left_out = LeftOut()

    def leave_out(reason: str, key: str) -> None:
        if is_wanted is None or is_wanted(key):
            left_out.add(reason, key)

    def is_readable(key: str, names: Sequence[str]) -> bool:
        reason = HIDDEN if any(map(is_hidden, names)) else _fault_of(key)
        if reason is not None:
            leave_out(reason, key)
        return reason is None

    inside = store.local_path("any")
    if inside is not None:
        found = _walk(str(inside.parent), is_readable, leave_out)
    else:
        found = (item for item in store.list() if is_readable(item.key, item.key.split("/")))
    chosen = (item for item in found if is_wanted is None or is_wanted(item.key))
    return tuple(sorted(chosen, key=attrgetter("key"))), left_out


def _fault_of(key: str) -> str | None:
    """Return why no store can have this key, None if one can."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return "with a name that is not UTF-8"
    if "\\" in key:
        return "with a backslash in its name"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"with a path longer than {MAX_KEY_BYTES} bytes"
    try:
        check_key(key)
    except StoreError:
        return "with a name that is not allowed"
    return None


@dataclass(frozen=True)
class _Folder:
    """A folder to be listed."""

    key: str
    """Path below the root; empty for the root."""
    real: str
    """Path without links."""
    top: str
    """Path without links of the root, or of the folder that the last link led to."""
    above: tuple[tuple[str, str], ...] = ()
    """`top` and `real` of the folder of each link on the way."""


def _walk(
    root: str, is_readable: Callable[[str, Sequence[str]], bool], leave_out: Callable[[str, str], None]
) -> Iterator[ObjectInfo]:
    """Yield the files of a local folder.

    A folder that contains itself through links is left out where it repeats: the walk came through it already.
    """
    real = os.path.realpath(root).rstrip("/")
    waiting = [_Folder("", real, real)]
    num_nested = 0
    while waiting:
        folder = waiting.pop()
        for entry in _entries(f"{root}/{folder.key}" if folder.key else root):
            key = f"{folder.key}/{entry.name}" if folder.key else entry.name
            if not is_readable(key, [entry.name]):
                continue
            try:
                status = entry.stat()
            except OSError as error:
                if error.errno in _GONE and not entry.is_symlink():
                    continue  # removed since it was listed: noticed where the source is listed again
                if error.errno not in {*_GONE, errno.ELOOP}:
                    raise _unlisted(entry.path, error) from error
                leave_out("links that lead nowhere", key)
                continue
            if stat.S_ISREG(status.st_mode):
                yield ObjectInfo(key, status.st_size, str(status.st_mtime_ns), status.st_mtime)
                continue
            if not stat.S_ISDIR(status.st_mode):
                leave_out("pipes, sockets or devices", key)
                continue
            is_link = entry.is_symlink()
            real = os.path.realpath(entry.path).rstrip("/") if is_link else f"{folder.real}/{entry.name}"
            above = (*folder.above, (folder.top, folder.real))
            if (is_link or folder.above) and any(
                f"{bottom}/".startswith(f"{real}/") and f"{real}/".startswith(f"{top}/") for top, bottom in above
            ):
                leave_out("links to a folder that contains them", key)
                continue
            if not is_link:
                waiting.append(_Folder(key, real, folder.top, folder.above))
                continue
            num_nested += bool(folder.above)
            if num_nested > MAX_NESTED_LINKS:
                raise StoreError(
                    f"{printable(root)}: more than {MAX_NESTED_LINKS:,} symbolic links to folders lie in folders "
                    f"that other links lead to, such as {printable(key)}: remove links, or give the folders that they "
                    "lead to",
                    url=printable(root),
                )
            waiting.append(_Folder(key, real, real, above))


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=attrgetter("name"))
    except OSError as error:
        if error.errno in _GONE:
            return []  # there is no such folder, or it was removed meanwhile
        raise _unlisted(path, error) from error


def _unlisted(path: str, error: OSError) -> StoreError:
    shown = printable(path)
    if isinstance(error, PermissionError):
        return StoreAuthError(
            f"no permission to list {shown}, so that its files would be missing: check its owner and mode, or remove "
            "it from the source",
            path=shown,
        )
    return StoreError(f"cannot list {shown}: {error.strerror or error}", path=shown)
