"""No store reads more from a server than it asked for, whatever the server sends."""

import pytest

from smalti.errors import SmaltiError, StoreError, StoreTimeout
from smalti.inspection import info
from smalti.storage import open_store
from smalti.storage.schemes import SCHEMES
from tests.storage.servers.endless_server import PATTERN, EndlessServer
from tests.stores import MemoryStore

KEYS = {"key": "AKIDTEST", "secret": "SECRETTEST"}
SENT_BYTES = 32 << 20
"""More than what is on its way in the buffers of both ends when a reader stops."""


def azure_options(server):
    account, host = "devstoreaccount1", server.url.partition("://")[2]
    return {"connection_string": f"AccountName={account};AccountKey=a2V5;BlobEndpoint=http://{host}/{account};"}


STORES = {
    "s3": lambda server: ("s3://bucket/set", {**KEYS, "endpoint_url": server.url}),
    "s3 by s3fs": lambda server: (
        "s3://bucket/set",
        {**KEYS, "endpoint_url": server.url, "default_block_size": 1 << 20},
    ),
    "oci": lambda server: ("oci://bucket@space/set", {**KEYS, "endpoint_url": server.url}),
    "gs": lambda server: ("gs://bucket/set", {"endpoint_url": server.url, "token": "anon"}),
    "gs by HMAC key": lambda server: ("gs://bucket/set", {**KEYS, "endpoint_url": server.url}),
    "abfs": lambda server: ("abfs://container/set", azure_options(server)),
    "dbfs": lambda server: ("dbfs:/Volumes/a/b/c/set", {"host": server.url, "token": "dapi0"}),
    "http": lambda server: (f"{server.url}/set", {}),
    "hf": lambda server: ("hf://datasets/owner/name", {"endpoint": server.url}),
}
NOT_HTTP = {"memory", "sftp"}
"""Schemes whose protocol returns a number of bytes that the reader names."""
SAME_CLIENT = {"https": "http", "azure": "abfs"}


def test_every_scheme_is_among_the_stores_below():
    tried = {name.partition(" ")[0] for name in STORES} | NOT_HTTP | set(SAME_CLIENT)
    assert {scheme.name for scheme in SCHEMES} == tried


@pytest.fixture(params=[True, False], ids=["ignores ranges", "sends more than the range"])
def server(request, clean_environment):
    with EndlessServer(ignores_ranges=request.param) as server:
        yield server


SLOW = {"dbfs", "gs", "abfs", "gs by HMAC key", "s3 by s3fs"}
EACH = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else ()) for name in STORES]


def each_with(server):
    """Return all stores with both servers; those that are slow to open with one in the default run."""
    marks = {True: [pytest.mark.slow, pytest.mark.nightly], False: [pytest.mark.slow]}
    return [
        pytest.param(kind, name, marks=marks[kind != server] if name in SLOW else ())
        for kind in (True, False)
        for name in STORES
    ]


@pytest.mark.parametrize(("server", "name"), each_with(True), indirect=["server"])
def test_a_range_of_an_object_without_an_end_is_read_and_no_more(server, name):
    store = open_store(*STORES[name](server))
    for begin, end in ((0, 1000), (21, 1000)):
        server.sent = 0
        try:
            found = store.get_range("k", begin, end)
        except StoreError:
            assert server.ignores_ranges, "only an answer that is no range at all may be refused"
        else:
            assert found == (PATTERN * ((end >> 4) + 1))[begin:end]
        assert server.sent < SENT_BYTES


@pytest.mark.parametrize(("server", "name"), each_with(False), indirect=["server"])
def test_an_object_with_a_limit_is_read_to_the_limit_and_refused(server, name):
    store = open_store(*STORES[name](server))
    with pytest.raises(StoreError):
        store.get_limited("k", 100_000)
    assert server.sent < SENT_BYTES


def test_a_whole_object_is_read_up_to_the_largest_that_fits_memory(server, monkeypatch):
    monkeypatch.setattr("smalti.storage.backends.bodies.MAX_OBJECT_BYTES", 1 << 20)
    for name in ("s3", "http"):
        server.sent = 0
        with pytest.raises(StoreError, match="more than 1048576 bytes"):
            open_store(*STORES[name](server)).get("k")
        assert server.sent < SENT_BYTES


def test_a_set_whose_index_file_has_no_end_is_an_error(server, monkeypatch):
    monkeypatch.setattr("smalti.storage.backends.bodies.MAX_OBJECT_BYTES", 4 << 20)
    with pytest.raises(SmaltiError):
        info(f"{server.url}/set")
    assert server.sent < 300 << 20


@pytest.mark.parametrize("name", EACH)
def test_a_body_that_comes_in_trickles_ends_at_the_deadline(name, clean_environment):
    with EndlessServer(ignores_ranges=False, trickles=True) as server:
        address, options = STORES[name](server)
        store = open_store(address, {**options, "request_timeout": 0.3, "request_attempts": 1})
        for read in (lambda: store.get("k"), lambda: store.get_range("k", 0, 1 << 20)):
            with pytest.raises(StoreTimeout):
                read()


def test_an_object_of_just_the_limit_is_returned():
    store = MemoryStore()
    store.put("k", b"12345")
    assert store.get_limited("k", 5) == b"12345"
    with pytest.raises(StoreError, match="larger than 4 bytes"):
        store.get_limited("k", 4)
