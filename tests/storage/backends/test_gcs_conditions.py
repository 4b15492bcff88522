"""Google's storage: gcsfs sends the conditions, and refusals map to the right errors."""

import threading

import pytest

from smalti.errors import StoreAuthError, StoreConflict, StoreError, StoreExists
from smalti.storage import open_store
from tests.faultstore import FaultStore, Toxic
from tests.storage.servers.gcs_json import GcsJsonServer

UPLOADS = "/upload/storage/v1/b/bucket/o"


@pytest.fixture
def server(clean_environment):
    with GcsJsonServer() as running:
        yield running


@pytest.fixture
def store(server):
    return open_store("gs://bucket/set", server.options)


def uploads(server):
    return [request.query.get("ifGenerationMatch") for request in server.log if request.path == UPLOADS]


def test_an_exclusive_put_requires_generation_zero_and_a_plain_one_none(server, store):
    store.put_if_absent("v", b"1")
    with pytest.raises(StoreExists, match="set/v"):
        store.put_if_absent("v", b"2")
    store.put("v", b"3")
    assert uploads(server) == ["0", "0", None]


def test_a_conditional_put_requires_the_generation_that_was_read(server, store):
    store.put("i", b"1")
    generation = str(server.objects["set/i"][1])
    seen = store.get_tagged("i")
    assert (seen.data, seen.etag) == (b"1", generation)
    assert store.put_if_match("i", b"\r\n--x--\n", seen.etag) == str(server.objects["set/i"][1])
    assert server.objects["set/i"][0] == b"\r\n--x--\n", "bytes that look like the request's own"
    with pytest.raises(StoreConflict):
        store.put_if_match("i", b"2", seen.etag)
    assert uploads(server) == [None, generation, generation]


def test_a_server_that_ignores_conditions_is_detected(server, store):
    server.keeps_conditions = False
    with pytest.raises(StoreError, match="If-None-Match"):
        store.check_exclusive_puts("probe")
    with pytest.raises(StoreError, match="If-Match"):
        store.check_conditional_puts("probe")
    assert server.objects == {}


def test_of_sixteen_stores_exactly_one_creates_an_object(server):
    """Sixteen threads with a store each, as writers have, at one key: every loser gets an error."""
    ends, start = [], threading.Barrier(16, timeout=500)

    def create(who):
        own = open_store("gs://bucket/set", server.options)
        start.wait()
        try:
            own.put_if_absent("v", b"%d" % who)
        except StoreExists:
            ends.append(None)
        else:
            ends.append(b"%d" % who)

    threads = [threading.Thread(target=create, args=(who,), daemon=True) for who in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    winners = [end for end in ends if end is not None]
    assert len(ends) == 16
    assert winners == [server.objects["set/v"][0]]


def test_an_exclusive_put_whose_reply_was_lost_finds_its_own_object_and_writes_once(server, store):
    """The retry raises "exists": the publisher compares, and nothing was written twice."""
    server.lose = 1
    with pytest.raises(StoreExists):
        store.put_if_absent("v", b"mine")
    assert server.objects["set/v"][0] == b"mine"
    assert set(uploads(server)) == {"0"}


@pytest.mark.parametrize(
    ("status", "expected", "requests"),
    [
        (412, StoreExists, 1),
        (403, StoreAuthError, 1),
        (401, StoreAuthError, 1),
        (429, StoreError, 2),
        (503, StoreError, 2),
    ],
)
def test_refusals_of_an_exclusive_put_map_to_their_errors(clean_environment, status, expected, requests):
    """One request if a retry cannot help; otherwise two, by gcsfs."""
    with FaultStore(Toxic("http", status=status)) as faults:
        options = {"endpoint_url": faults.url, "token": "anon", "request_attempts": 1, "request_timeout": 60}
        with pytest.raises(expected, match="gs://bucket/set/v") as caught:
            open_store("gs://bucket/set", options).put_if_absent("v", b"1")
        assert type(caught.value) is expected
        assert len(faults.log()) == requests
        assert {entry.query.get("ifGenerationMatch") for entry in faults.log()} == {"0"}
