"""Unpack Ceph's gateway, OpenSSH and PostgreSQL from Debian below .venv/servers/debian, for `make test-nightly`.

    python tools/debian_servers.py

Needs apt-get and dpkg (Debian, Ubuntu) and their lists of packages; no root, nothing is installed. Where the programs
are installed already (`apt-get install ceph-mon ceph-osd radosgw ceph-common openssh-server postgresql`), this does
nothing.
"""

import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("ceph-mon", "ceph-osd", "radosgw", "ceph-common", "openssh-server", "postgresql")
PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "sshd", "initdb")
TARGET = Path(__file__).resolve().parents[1] / ".venv" / "servers" / "debian"


def main() -> None:
    """Download what apt-get says that they need, and unpack it."""
    folders = [root / part for root in (Path("/"), TARGET) for part in ("usr/bin", "usr/sbin")]
    for root in (Path("/"), TARGET):
        folders += root.glob("usr/lib/postgresql/*/bin")
    places = ":".join(map(str, folders))
    missing = [program for program in PROGRAMS if not shutil.which(program, path=places)]
    if not missing:
        return
    for tool in ("apt-get", "dpkg"):
        if not shutil.which(tool):
            sys.exit(
                f"{', '.join(missing)} are not here, and without {tool} they cannot be had: this needs Debian or Ubuntu"
            )
    downloads = TARGET / "downloads"
    (downloads / "partial").mkdir(parents=True, exist_ok=True)
    # A cache of its own: packages that lie in the machine's would not be named.
    ask = ["apt-get", "install", "--no-install-recommends", "--print-uris", "--yes", "--quiet"]
    ask += ["-o", f"Dir::Cache::archives={downloads}", *PACKAGES]
    names = subprocess.run(ask, check=True, capture_output=True, text=True).stdout
    wanted = sorted({line.split()[1].split("_")[0] for line in names.splitlines() if line.startswith("'")})
    print(f"downloading {len(wanted)} packages for {', '.join(missing)}")
    subprocess.run(["apt-get", "download", "--quiet", *wanted], cwd=downloads, check=True)
    for package in sorted(downloads.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(TARGET)], check=True)
    shutil.rmtree(downloads)


if __name__ == "__main__":
    main()
