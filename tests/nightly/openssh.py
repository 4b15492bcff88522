"""OpenSSH's own server of SFTP, over a folder; no root is needed, and as root it runs as `daemon`."""

import getpass
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.nightly.programs import environment, find
from tests.storage.servers.process import run_server

RUNS_AS = "daemon"
"""The user that runs it where root starts it: every Debian has it, not locked, and it may log in to itself alone."""
CONFIG = """\
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups 200
MaxSessions 200
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class OpenSsh:
    """A server, and what a user needs for it."""

    port: int
    user: str
    data: Path
    key_file: Path
    known_hosts: Path

    @property
    def url(self) -> str:
        """The address of its folder."""
        return f"sftp://{self.user}@127.0.0.1:{self.port}{self.data}"


@contextmanager
def openssh() -> Iterator[OpenSsh]:
    """The server, with a key of its own, and a key for its one user."""
    import asyncssh

    program, user = find("sshd"), RUNS_AS if os.getuid() == 0 else getpass.getuser()
    folder = Path(tempfile.mkdtemp(prefix="smalti-openssh-"))  # not pytest's, which only root could read
    try:
        host, own = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        host.write_private_key(str(folder / "host_key"))
        (folder / "authorized").write_bytes(own.export_public_key())
        (folder / "config").write_text(CONFIG.format(folder=folder))
        (folder / "data").mkdir()
        (folder / "host_key").chmod(0o600)
        names = pwd.getpwnam(user)
        for path in (folder, *folder.iterdir()):
            os.chown(path, names.pw_uid, names.pw_gid)
        own.write_private_key(str(folder / "user_key"))
        argv = [program, "-D", "-e", "-f", str(folder / "config")]
        who = {"user": user, "group": names.pw_gid, "extra_groups": []} if os.getuid() == 0 else {}
        with run_server(lambda port: [*argv, "-p", str(port)], env=environment(), **who) as port:
            known = folder / "known_hosts"
            known.write_bytes(f"[127.0.0.1]:{port} ".encode() + host.export_public_key())
            yield OpenSsh(port, user, folder / "data", folder / "user_key", known)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
