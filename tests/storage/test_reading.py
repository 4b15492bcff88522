"""Reads of objects: in one request if possible, of one content, resumed after broken connections."""

import io
import os
import pickle
from contextlib import suppress

import pytest

from smalti.errors import StoreAuthError, StoreError, StoreTimeout
from smalti.process import PerProcess
from smalti.storage import open_store
from smalti.storage.backends.s3 import S3Reader
from smalti.storage.object_store import FIRST_RANGE_BYTES, RANGE_BYTES, FsspecReader
from tests.faultstore import FaultStore, Toxic

DATA = bytes(range(251)) * 40_000
"""10 MB, in which no two ranges of a power of two are alike."""


@pytest.fixture(params=["streamed", "ranged"])
def faults_and_store(request, clean_environment):
    """A fault store with one object, and the store over it with either reader."""
    with FaultStore() as faults:
        faults.put("k", DATA)
        # An option that botocore does not have selects the reader over s3fs.
        extra = {"version_aware": False} if request.param == "ranged" else {}
        store = open_store("s3://bucket", {**faults.options, **extra})
        kind = {"streamed": S3Reader, "ranged": FsspecReader}[request.param]
        assert isinstance(store._reader, kind)
        yield faults, store


def fetch(store, key="k"):
    out = io.BytesIO()
    assert store.fetch(key, out) == len(out.getvalue())
    return out.getvalue()


def test_an_object_is_read_from_s3_in_one_request(clean_environment):
    with FaultStore() as faults:
        faults.put("k", DATA)
        assert fetch(open_store("s3://bucket", faults.options)) == DATA
        assert [(entry.method, entry.key) for entry in faults.log()] == [("GET", "k")]


def test_a_broken_body_is_resumed_at_its_last_byte(clean_environment):
    with FaultStore(Toxic("reset_peer", key="k", method="GET", after=6_000_000, count=1)) as faults:
        faults.put("k", DATA)
        assert fetch(open_store("s3://bucket", faults.options)) == DATA
        _, second = faults.log()
        begin = int(second.headers["range"].removeprefix("bytes=").removesuffix("-"))
        assert 0 < begin <= 6_000_000, "received bytes were kept"
        assert second.headers["if-match"]


def test_every_chunk_resets_the_number_of_faults(clean_environment):
    with FaultStore(Toxic("truncate", key="k", after=1_000_000, count=9)) as faults:
        faults.put("k", DATA)
        assert fetch(open_store("s3://bucket", faults.options)) == DATA, "there were more faults than attempts"
        assert len(faults.log()) == 10


@pytest.mark.parametrize(
    ("faults_and_store", "after"),
    [("streamed", 0), ("streamed", 3_000_000), ("streamed", 9_000_000), ("ranged", 0), ("ranged", 9_000_000)],
    indirect=["faults_and_store"],
)
def test_bytes_of_two_contents_are_never_mixed(faults_and_store, after):
    faults, store = faults_and_store

    class Swapping(io.BytesIO):
        def write(self, data):
            if self.tell() <= after < self.tell() + len(data):
                faults.plant(Toxic("reset_peer", key="k", after=1_000_000, count=1))
                faults.put("k", DATA[::-1])
            return super().write(data)

    out = Swapping()
    with suppress(StoreError):
        store.fetch("k", out)
        assert out.getvalue() in {DATA, DATA[::-1]}
    assert DATA.startswith(out.getvalue()) or out.getvalue() == DATA[::-1]


@pytest.mark.parametrize(
    ("faults_and_store", "size"),
    [
        *(("streamed", size) for size in (0, 1, RANGE_BYTES + 1)),
        *(("ranged", size) for size in (0, FIRST_RANGE_BYTES, RANGE_BYTES + 1)),
        *(pytest.param("ranged", size, marks=pytest.mark.nightly) for size in (1, FIRST_RANGE_BYTES - 1, RANGE_BYTES)),
    ],
    indirect=["faults_and_store"],
)
def test_objects_of_every_size_are_read_whole(faults_and_store, size):
    faults, store = faults_and_store
    faults.put("k", DATA[:size])
    assert fetch(store) == store.get("k") == DATA[:size]
    assert store.size("k") == size


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 3, bytes([0, 1, 2])),
        (250, 252, bytes([250, 0])),
        (10_039_999, 10_050_000, bytes([250])),
        (10_040_000, 10_040_001, b""),
    ],
)
def test_a_range_returns_its_bytes(faults_and_store, begin, end, expected):
    assert faults_and_store[1].get_range("k", begin, end) == expected


def test_bytes_that_arrive_too_slowly_are_a_timeout(clean_environment):
    with FaultStore(Toxic("stall", seconds=60)) as faults:
        faults.put("k", DATA)
        store = open_store("s3://bucket", {**faults.options, "request_timeout": 1, "request_attempts": 1})
        for read in (lambda: store.get("k"), lambda: fetch(store)):
            with pytest.raises(StoreTimeout, match="cannot read s3://bucket/k"):
                read()


def test_a_redirect_is_an_error_and_is_not_followed(clean_environment):
    with FaultStore() as other, FaultStore() as faults:
        other.put("k", DATA)
        faults.put("k", DATA)
        faults.plant(Toxic("http", status=307, key="k", location=other.url + "/bucket/k"))
        store = open_store("s3://bucket", {**faults.options, "request_attempts": 1})
        for read in (lambda: store.get("k"), lambda: fetch(store), lambda: store.get_range("k", 0, 9)):
            with pytest.raises(StoreError):
                read()
        assert other.log() == []


def test_credentials_that_expired_are_read_once_more(clean_environment):
    with FaultStore(Toxic("http", status=400, code="ExpiredToken", access="OLD")) as faults:
        faults.put("k", DATA)
        options = {"endpoint_url": faults.options["endpoint_url"]}
        clean_environment.setenv("AWS_ACCESS_KEY_ID", "OLD")
        clean_environment.setenv("AWS_SECRET_ACCESS_KEY", faults.options["secret"])
        store = open_store("s3://bucket", options)
        with pytest.raises(StoreAuthError, match="refused"):
            store.get("k")
        assert [entry.access for entry in faults.log()] == ["OLD", "OLD"]
        clean_environment.setenv("AWS_ACCESS_KEY_ID", faults.options["key"])
        assert fetch(store) == DATA


def test_requester_pays_is_sent_by_readers(clean_environment):
    with FaultStore() as faults:
        faults.put("k", DATA)
        options = {**faults.options, "requester_pays": True, "s3_additional_kwargs": {"ACL": "private"}}
        fetch(open_store("s3://bucket", options))
        assert faults.log()[0].headers["x-amz-request-payer"] == "requester"
        assert "x-amz-acl" not in faults.log()[0].headers, "that is for writers"


def test_a_pickled_reader_creates_its_own_client(faults_and_store):
    _, store = faults_and_store
    fetch(store)
    assert fetch(pickle.loads(pickle.dumps(store))) == DATA


def test_only_stores_with_the_same_login_share_a_client(clean_environment, tmp_path):
    with FaultStore() as faults:
        faults.put("a/k", DATA)
        address = {"endpoint_url": faults.options["endpoint_url"]}
        clean_environment.setenv("AWS_ACCESS_KEY_ID", faults.options["key"])
        clean_environment.setenv("AWS_SECRET_ACCESS_KEY", faults.options["secret"])

        def client_of(options):
            store = open_store("s3://bucket/a", options)
            store.get_range("k", 0, 1)
            stores.append(store)
            return store._reader._client.get()

        stores: list[object] = []
        first = client_of(address)
        assert client_of(address) is first
        assert client_of({**address, "request_timeout": 7}) is not first
        clean_environment.setenv("AWS_SESSION_TOKEN", "another")
        assert client_of(address) is not first
        clean_environment.delenv("AWS_SESSION_TOKEN")
        config = tmp_path / "config"
        config.write_text("[default]\nregion = eu-west-1\n")
        clean_environment.setenv("AWS_CONFIG_FILE", str(config))
        second = client_of(address)
        os.utime(config, (1, 1))
        assert client_of(address) is not second, "the file was written anew"
        stores.pop()._reader.renew()
        os.utime(config, (2, 2))
        assert len({id(client_of(address)) for _ in range(3)}) == 1


class Link:
    """A file system with one object of 64 MiB and a bandwidth limit."""

    def __init__(self, rate):
        self.now, self.rate, self.longest, self.requested = 0.0, rate, 0.0, []

    def info(self, _path):
        return {"size": 64 << 20, "etag": "1"}

    def cat_file(self, _path, start, end):
        seconds = (end - start) / self.rate
        self.now += seconds
        self.longest = max(self.longest, seconds)
        self.requested.append(end - start)
        return bytes(end - start)


def read_over(link):
    reader = FsspecReader(PerProcess(lambda: link), lambda: link.now)
    return sum(map(len, reader.open("k", 0, "", timeout=60.0).chunks))


def test_on_a_slow_link_ranges_are_small_enough_to_show_progress():
    """A range shows no progress until it is complete: 8 MiB at 64 KiB/s would look like a stall of 128 s."""
    link = Link(64 << 10)
    assert read_over(link) == 64 << 20
    assert link.longest == 16.0
    assert link.requested[-1] == 256 << 10


def test_on_a_fast_link_ranges_grow_to_8_mib():
    link = Link(100 << 20)
    assert read_over(link) == 64 << 20
    assert [size >> 20 for size in link.requested] == [1, 2, 4, 8, 8, 8, 8, 8, 8, 8, 1]
