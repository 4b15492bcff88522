"""What kind of file system a folder lies on: over a network, locks are weak."""

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path

from smalti.errors import StoreError

NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.sshfs",
    "fuse.s3fs", "fuse.gcsfuse", "fuse.blobfuse2", "fuse.mountpoint-s3", "fuse.goofys", "fuse.rclone", "fuse.glusterfs",
}  # fmt: skip
_told: set[str] = set()


def filesystem_of(folder: Path) -> str:
    """The type of the file system, such as `ext4` or `nfs4`; nothing where the system does not say."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    place, best, kind = os.path.realpath(folder), "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


def check_filesystem(folder: Path, limit: int | None, detect: Callable[[Path], str] = filesystem_of) -> None:
    """Return if locks can be relied on; warn once where they cannot.

    Raises:
        StoreError: they cannot, and a limit was asked for, which nobody could keep.
    """
    kind = detect(folder)
    if kind not in NETWORK:
        return
    where = f"the cache folder {folder} lies on a network file system ({kind}), where locks do not hold between hosts"
    if limit is not None:
        raise StoreError(
            f"{where}, so that `cache_limit` cannot be kept; give a folder of a local disk as `local`",
            path=str(folder),
            filesystem=kind,
        )
    if str(folder) not in _told:
        _told.add(str(folder))
        warnings.warn(
            f"{where}: hosts may fetch a shard more than once; give a folder of a local disk as `local`", stacklevel=2
        )
