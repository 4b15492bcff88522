"""Servers from Debian: installed, or unpacked where `tools/debian_servers.py` puts them."""

import os
import shutil
from pathlib import Path

import pytest

UNPACKED = Path(__file__).resolve().parents[2] / ".venv" / "servers" / "debian"
LIBRARIES = ("usr/lib/{arch}", "usr/lib/{arch}/ceph", "lib/{arch}")


def find(program: str) -> str:
    """The program's path; a failure that says what to install where it is not there."""
    places = [UNPACKED / part for part in ("usr/bin", "usr/sbin")]
    places += [each for root in (Path("/"), UNPACKED) for each in root.glob("usr/lib/postgresql/*/bin")]
    found = shutil.which(program) or shutil.which(program, path=os.pathsep.join(map(str, places)))
    found = found or shutil.which(program, path="/usr/sbin:/sbin")
    if not found:
        pytest.fail(
            f"{program} is not here: `python tools/debian_servers.py` unpacks it below .venv; as root you may "
            "also apt-get install ceph-mon ceph-osd radosgw ceph-common openssh-server postgresql",
            pytrace=False,
        )
    return found


def library_folders() -> list[Path]:
    """Return the folders of the unpacked libraries; none where everything is installed."""
    roots = [UNPACKED / pattern.format(arch=f"{os.uname().machine}-linux-gnu") for pattern in LIBRARIES]
    return [folder for folder in roots if folder.is_dir()]


def environment() -> dict[str, str]:
    """The environment in which an unpacked program finds its libraries."""
    paths = [*map(str, library_folders()), os.environ.get("LD_LIBRARY_PATH", "")]
    found = {"LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path)}
    modules = UNPACKED / "usr" / "lib" / "python3" / "dist-packages"  # `ceph` is a script of Debian's own Python
    return found | ({"PYTHONPATH": str(modules)} if modules.is_dir() else {})
