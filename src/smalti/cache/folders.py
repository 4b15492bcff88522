"""Private folders and files of the cache: mode 0700, owned by this user, never through a planted link."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from smalti.errors import StoreAuthError, StoreError

PART_SUFFIX = ".part"
BAD_PREFIX = ".bad-"


def open_root(local: Path, digest: str) -> Path:
    """The folder for one data set, made with mode 0700; a variant with the user's number when another user owns it.

    Raises:
        StoreError: the folder cannot be made, or something else stands in its place.
    """
    mine = local / digest
    for candidate in (mine, local / f"{digest}.uid{os.geteuid()}"):
        try:
            local.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                candidate.mkdir(mode=0o700)
            found = candidate.lstat()
        except PermissionError as error:
            raise StoreAuthError(
                f"no permission to make the cache folder {candidate}; give another one as `local`", path=str(candidate)
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot make the cache folder {candidate}: {error.strerror}; give another one as `local`",
                path=str(candidate),
            ) from error
        if not stat.S_ISDIR(found.st_mode):
            raise StoreError(
                f"{candidate} is not a folder but stands where the cache needs one; remove it", path=str(candidate)
            )
        if found.st_uid == os.geteuid():
            if stat.S_IMODE(found.st_mode) & 0o077:
                candidate.chmod(0o700)
            return candidate
    raise StoreError(
        f"{mine} and its private variant belong to other users; give another folder as `local`", path=str(mine)
    )


def make_parent(root: Path, target: Path) -> None:
    """The folders between the root and a file in it, each 0700 and none of them a link."""
    folder = root
    if not root.is_dir():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody cleaned up while we run
    for part in target.parent.relative_to(root).parts:
        folder = folder / part
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if folder.is_symlink() or not folder.is_dir():
                raise StoreError(
                    f"{folder} is not a folder but stands where the cache needs one; remove it", path=str(folder)
                ) from None


def part_of(target: Path, token: str) -> Path:
    """A temporary name beside the target; `token` makes it unique."""
    return target.with_name(f".{target.name}.{os.getpid()}.{token}{PART_SUFFIX}")


def remove_parts(target: Path) -> None:
    """Remove temporaries that killed processes left; only for the holder of the target's lock."""
    for left in target.parent.glob(f".{_escape(target.name)}.*{PART_SUFFIX}"):
        left.unlink(missing_ok=True)


def quarantine(target: Path) -> None:
    """Put a file that does not verify aside, one per shard, so that it is never served and can be looked at."""
    try:
        target.replace(target.with_name(f"{BAD_PREFIX}{target.name}"))
    except FileNotFoundError:
        return


def _escape(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
