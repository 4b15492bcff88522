"""Ceph's RADOS gateway, a real S3 server: one monitor, one store of objects in memory, one gateway, no root.

Its packages are `ceph-mon ceph-osd radosgw ceph-common`. No manager and no disk is needed.
"""

import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.nightly.programs import environment, find, library_folders
from tests.storage.servers.certificates import Certificate
from tests.storage.servers.process import free_port

START_SECONDS = 120
KEY, SECRET = "AKIDNIGHTLY", "SECRETNIGHTLYSECRET"
CONF = """\
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
keyring = {folder}/keyring
run dir = {folder}
admin socket = {folder}/$name.asok
pid file =
log file = {folder}/$name.log
mon data = {folder}/mon
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 8G
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
mon allow pool size one = true
mon pg warn on pool no redundancy = false
ms bind ipv6 = false
public addr = 127.0.0.1
# cephx stays on: with no authentication the gateway of this version never connects.
{libraries}
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port} ssl_endpoint=127.0.0.1:{secure} {certificate} tcp_nodelay=1
"""


@dataclass(frozen=True)
class Gateway:
    """Two doors to one store, and the keys of a user."""

    http: str
    https: str
    key: str = KEY
    secret: str = SECRET

    def make_bucket(self, name: str) -> str:
        """A new bucket."""
        import boto3

        keys = {"aws_access_key_id": self.key, "aws_secret_access_key": self.secret}
        client = boto3.client("s3", endpoint_url=self.http, region_name="us-east-1", **keys)
        client.create_bucket(Bucket=name)
        return name


@contextmanager
def ceph(folder: Path, certificate: Certificate) -> Iterator[Gateway]:
    """The gateway, started in some fifteen seconds."""
    v2, v1, port, secure = (free_port() for _ in range(4))
    fsid, conf = str(uuid.uuid4()), folder / "ceph.conf"
    unpacked = next((place / "ceph" for place in library_folders() if (place / "ceph").is_dir()), None)
    inside = {"plugin dir": "", "erasure code dir": "erasure-code", "osd class dir": "../rados-classes"}
    lines = [f"{name} = {unpacked / part}" for name, part in inside.items()] if unpacked else []
    conf.write_text(
        CONF.format(
            fsid=fsid, v1=v1, v2=v2, folder=folder, port=port, secure=secure,
            certificate=f"ssl_certificate={certificate.chain} ssl_private_key={certificate.key}",
            libraries="\n".join(lines),
        )
    )  # fmt: skip

    def run(program: str, *arguments: str) -> None:
        argv = [find(program), *(["-c", str(conf)] if program != "monmaptool" else []), *arguments]
        done = subprocess.run(argv, env=_env(), capture_output=True, text=True, timeout=START_SECONDS, check=False)
        assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    _make_keys(run, folder)
    run(
        "monmaptool",
        "--create",
        "--fsid",
        fsid,
        "--addv",
        "a",
        f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]",
        f"{folder}/monmap",
    )
    run("ceph-mon", "--mkfs", "-i", "a", "--monmap", f"{folder}/monmap", "--keyring", f"{folder}/keyring")
    with ExitStack() as stack:
        start = _starter(stack, conf, folder)
        start("ceph-mon", "-i", "a")
        store = str(uuid.uuid4())
        (folder / "osd").mkdir()
        run("ceph", "--connect-timeout", "60", "osd", "new", store)
        run("ceph", "auth", "import", "-i", f"{folder}/keyring")
        run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", store)
        start("ceph-osd", "-i", "0")
        made = ("--uid=nightly", "--display-name=nightly", f"--access-key={KEY}", f"--secret-key={SECRET}")
        run("radosgw-admin", "user", "create", *made)
        child = start("radosgw", "-n", "client.rgw")
        _wait(child, port, folder)
        yield Gateway(f"http://127.0.0.1:{port}", f"https://127.0.0.1:{secure}")


def _make_keys(run, folder):
    ring = f"{folder}/keyring"
    everything = ("--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")
    run("ceph-authtool", "--create-keyring", ring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
    run("ceph-authtool", ring, "--gen-key", "-n", "client.admin", *everything)
    run("ceph-authtool", ring, "--gen-key", "-n", "client.rgw", "--cap", "mon", "allow *", "--cap", "osd", "allow *")
    run(
        "ceph-authtool",
        ring,
        "--gen-key",
        "-n",
        "osd.0",
        "--cap",
        "mon",
        "allow profile osd",
        "--cap",
        "osd",
        "allow *",
    )


def _env():
    import os

    return {**os.environ, **environment()}


def _starter(stack, conf, folder):
    def start(program, *arguments):
        log = stack.enter_context((folder / f"{program}.out").open("wb"))
        argv = [find(program), "-c", str(conf), "-f", *arguments]
        child = subprocess.Popen(argv, env=_env(), stdout=log, stderr=log, start_new_session=True)
        stack.callback(_end, child)
        return child

    return start


def _end(child):
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(10)


def _wait(child, port, folder):
    import socket

    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert child.poll() is None, f"radosgw ended: {(folder / 'radosgw.out').read_text()[-3000:]}"
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"radosgw does not answer after {START_SECONDS} s; see {folder}")
