"""The traps of the stores' libraries, each by its name; storage.md of the design found them, and none may come back."""

import os
import signal
import subprocess
import sys
import time

import pytest

from smalti.errors import StoreError, StoreNotFound
from smalti.storage import open_store
from smalti.storage.volumes import VolumesFileSystem
from tests.storage.fault_server import FaultServer

KEYS = {"key": "AKIDTEST", "secret": "CANARYSECRETCANARY"}


def store_of(kind, url):
    """A store of each kind that talks http, at a server that misbehaves."""
    host = url.removeprefix("http://")
    azure = f"DefaultEndpointsProtocol=http;AccountName=acct;AccountKey=Q0FOQVJZ;BlobEndpoint={url}/acct;"
    address, options = {
        "s3": ("s3://bucket/set", {**KEYS, "endpoint_url": url}),
        "gs": ("gs://bucket/set", {"endpoint_url": url, "token": "anon"}),
        "abfs": ("abfs://container/set", {"connection_string": azure}),
        "dbfs": ("dbfs:/Volumes/c/s/v/set", {"host": url, "token": "dapi0123456789"}),
        "hf": ("hf://datasets/owner/name", {"endpoint": url, "token": "hf_token"}),
        "http": (f"http://{host}/set", {}),
    }[kind]
    return open_store(address, {**options, "request_timeout": 6})


@pytest.mark.parametrize("kind", ["s3", "gs", "abfs", "dbfs", "hf", "http"])
@pytest.mark.parametrize("fault", [503, "drop"])
@pytest.mark.slow
def test_retries_do_not_outlive_patience(clean_environment, kind, fault):
    """By default s3fs tries for a minute, gcsfs for half of one, adlfs for one and a half, Databricks' SDK for ten."""
    with FaultServer(fault) as server:
        store = store_of(kind, server.url)
        begin = time.monotonic()
        with pytest.raises(StoreError):
            store.get("k")
        assert time.monotonic() - begin < 12
        assert server.requests >= 2, "tried again"
        assert server.requests <= 20, "and not for ever"


@pytest.mark.parametrize("kind", ["s3", "gs", "abfs", "hf", "http"])
def test_what_was_refused_is_not_asked_again(clean_environment, kind):
    with FaultServer(403) as server:
        with pytest.raises(PermissionError):
            store_of(kind, server.url).get("k")
        assert server.requests == 1


def test_a_fault_is_raised_and_never_returned_as_a_value(s3_server, s3_bucket):
    """fsspec's reads of several files hand out exceptions in the list of results."""
    store = open_store(f"s3://{s3_bucket}/set", {"endpoint_url": s3_server})
    store.put("there", b"1")
    for read in (store.get, store.size, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(StoreNotFound):
            read("missing")


def test_the_second_argument_of_a_read_is_where_it_begins(guarded_server, guarded_bucket):
    """In s3fs it is a version of the object, in gcsfs and adlfs the beginning."""
    store = open_store(f"s3://{guarded_bucket}/set", {"endpoint_url": guarded_server.http})
    store.put("k", b"0123456789")
    assert store.get_range("k", 0, 1) == b"0"
    assert store.get_range("k", 3, 5) == b"34"


def test_a_stream_of_databricks_is_never_read_without_a_size():
    """Its SDK is ten times slower when it is."""
    sizes = []

    class Stream:
        left = 5 << 20

        def read(self, size=-1):
            sizes.append(size)
            given = min(size, self.left)
            self.left -= given
            return bytes(given)

        def close(self):
            pass

    class Api:
        def do(self, *args, **kwargs):
            return {"contents": Stream()}

    filesystem = object.__new__(VolumesFileSystem)
    filesystem._api = Api()
    assert len(filesystem.cat_file("/Volumes/c/s/v/k")) == 5 << 20
    assert set(sizes) == {1 << 20}


KILLED = """
import sys
from smalti.storage import open_store
store = open_store(sys.argv[1], {"endpoint_url": sys.argv[2]} if sys.argv[2] else None)
print("begin", flush=True)
for turn in range(1000):
    store.put("k", bytes([turn % 256]) * (16 << 20))
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("kind", ["s3", "sftp", "disk"])
def test_a_writer_that_is_killed_leaves_a_whole_object_or_none(request, kind, tmp_path, clean_environment):
    """Files that are opened for writing are committed as far as they came; ours are not opened for writing."""
    environment, endpoint = {}, ""
    if kind == "s3":
        endpoint, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")
        address = f"s3://{bucket}/set"
    elif kind == "sftp":
        sftp = request.getfixturevalue("sftp")
        environment = {
            "COMPOSER_SFTP_KEY_FILE": str(sftp.key_file),
            "COMPOSER_SFTP_KNOWN_HOSTS_FILE": str(sftp.known_hosts),
        }
        address = f"{sftp.url}/killed"
    else:
        address = str(tmp_path / "disk")
    for name, value in environment.items():
        clean_environment.setenv(name, value)
    store = open_store(address, {"endpoint_url": endpoint} if endpoint else None)
    for wait in (0.2, 0.5, 0.9):
        child = subprocess.Popen([sys.executable, "-c", KILLED, address, endpoint], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"begin\n"
        time.sleep(wait)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
        child.stdout.close()
        sizes = {info.key: info.num_bytes for info in store.list()}
        assert sizes in ({}, {"k": 16 << 20})
        if sizes:
            data = store.get("k")
            assert data == data[:1] * (16 << 20)


def test_the_guard_of_these_tests_sees_what_leaves_the_machine():
    """A guard that sees nothing would pass everything."""
    import socket

    from tests.storage.servers import guard

    for leave in (
        lambda: socket.create_connection(("192.0.2.1", 80), timeout=0.1),
        lambda: socket.getaddrinfo("storage.googleapis.com", 443),
    ):
        with pytest.raises(ConnectionRefusedError, match="guard"):
            leave()
    assert guard.stop() == ["socket.getaddrinfo 192.0.2.1", "socket.getaddrinfo storage.googleapis.com"]
    guard.start()
