"""Pitfalls of the client libraries, one test each; all of them have occurred."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from smalti.errors import StoreError, StoreNotFound
from smalti.storage import open_store
from smalti.storage.databricks.api import FilesApi
from tests.storage.servers.planted import planted

KINDS = ("s3", "gs", "abfs", "dbfs", "hf", "http")
KEYS = {"key": "AKIDTEST", "secret": "CANARYSECRETCANARY"}


def store_of(kind, url):
    """Return a store of a kind that uses http, on a faulty server."""
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


@pytest.mark.parametrize("fault", [503, "drop"])
@pytest.mark.slow
def test_retries_end_at_the_deadline(clean_environment, fault):
    """By default s3fs retries for 60 s, gcsfs for 30, adlfs for 90, Databricks' SDK for 600. All wait at once here."""
    for kind in KINDS:  # a busy machine imports a library for longer than the deadline
        with planted(404) as server, pytest.raises(StoreError):
            store_of(kind, server.url).get("k")

    def ask(kind):
        with planted(fault) as server:
            store = store_of(kind, server.url)
            begin = time.monotonic()
            with pytest.raises(StoreError):
                store.get("k")
            return time.monotonic() - begin, len(server.log())

    with ThreadPoolExecutor(len(KINDS)) as pool:
        found = dict(zip(KINDS, pool.map(ask, KINDS), strict=True))
    assert {kind: seconds for kind, (seconds, _) in found.items() if seconds >= 25} == {}
    assert {kind: number for kind, (_, number) in found.items() if number < 2} == {}, "it was retried"
    assert {kind: number for kind, (_, number) in found.items() if number > 20} == {}, "but not endlessly"


@pytest.mark.parametrize("fault", [500, "drop"])
@pytest.mark.slow
def test_a_write_to_s3_is_retried_by_the_store_and_botocore_but_not_by_s3fs(clean_environment, fault):
    """Two attempts of botocore in each of the store's two; aiohttp repeats a request without an answer."""
    with planted(fault) as server:
        options = {**KEYS, "endpoint_url": server.url, "request_timeout": 60, "request_attempts": 2}
        with pytest.raises(StoreError):
            open_store("s3://bucket/set", options).put("k", b"1")
        assert 2 <= len(server.log()) <= (4 if fault == 500 else 8)


@pytest.mark.parametrize("kind", ["s3", "gs", "abfs", "hf", "http"])
def test_refused_requests_are_not_retried(clean_environment, kind):
    with planted(403) as server:
        with pytest.raises(PermissionError):
            store_of(kind, server.url).get("k")
        assert len(server.log()) == 1


WAYS = {"botocore": {}, "s3fs": {"default_block_size": 5 << 20}}
"""Options that the reader of S3 does not know leave reading to s3fs."""


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_is_raised_and_never_returned_as_a_value(s3_server, s3_bucket, way):
    """fsspec's reads of several files return exceptions in the list of results."""
    store = open_store(f"s3://{s3_bucket}/set", {"endpoint_url": s3_server, **WAYS[way]})
    store.put("there", b"1")
    for read in (store.get, store.size, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(StoreNotFound):
            read("missing")


@pytest.mark.parametrize("way", WAYS)
def test_reads_pass_their_range_by_keyword(guarded_server, guarded_bucket, way):
    """The second positional argument is a version in s3fs, and the start in gcsfs and adlfs."""
    store = open_store(f"s3://{guarded_bucket}/set", {"endpoint_url": guarded_server.http, **WAYS[way]})
    store.put("k", b"0123456789")
    assert store.get_range("k", 0, 1) == b"0"
    assert store.get_range("k", 3, 5) == b"34"


def test_a_stream_of_databricks_is_never_read_without_a_size():
    """The SDK is ten times slower without a size."""
    sizes = []

    class Stream:
        left = 5 << 20

        def read(self, size=-1):
            sizes.append(size)
            size_read = min(size, self.left) if size >= 0 else self.left
            self.left -= size_read
            return bytes(size_read)

        def close(self):
            pass

    class Workspace:
        """A workspace whose client answers with such streams."""

        def run(self, work, path):
            api = SimpleNamespace(do=lambda *_, **__: {"contents": Stream()})
            return work(SimpleNamespace(api=api, config=None))

        def request(self, method, address, path, **request):
            return {"contents": Stream()}

    assert len(FilesApi(Workspace()).read("/Volumes/c/s/v/k", 0, None)) == 5 << 20
    assert sizes
    assert all(0 < size <= 1 << 20 for size in sizes), "an unbounded read"


@pytest.mark.parametrize("kind", ["disk", "s3", "gs", "abfs"])
def test_an_upload_whose_source_fails_leaves_nothing(request, kind, tmp_path, clean_environment):
    """fsspec commits a file that is open for writing as far as it was written when its block raises."""
    unreadable = Path("/proc/self/mem")  # it opens, and its first read fails
    if not unreadable.exists():
        pytest.skip("needs Linux")
    if kind == "disk":
        store = open_store(tmp_path / "disk")
    elif kind == "s3":
        endpoint = request.getfixturevalue("s3_server")
        store = open_store(f"s3://{request.getfixturevalue('s3_bucket')}", {"endpoint_url": endpoint})
    elif kind == "gs":
        server = request.getfixturevalue("gcs_json")
        store = open_store("gs://bucket/set", server.options)
    else:
        server = request.getfixturevalue("azurite_http")
        options = {"connection_string": server.connection_string}
        store = open_store(f"az://{request.getfixturevalue('container')}", options)
    store.put("old", b"as it was")
    for key in ("new", "old"):
        with pytest.raises(StoreError):
            store.put_file(key, unreadable)
    assert [(info.key, info.num_bytes) for info in store.list()] == [("old", 9)]
    assert store.get("old") == b"as it was"


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
    """fsspec commits files that are open for writing as far as they were written; stores do not open files to write."""
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
        child.wait(60)
        child.stdout.close()
        sizes = {info.key: info.num_bytes for info in store.list()}
        assert sizes in ({}, {"k": 16 << 20})
        if sizes:
            data = store.get("k")
            assert data == data[:1] * (16 << 20)
