"""Each toxic does what it says, once looked at on the bare socket: what the SDKs make of it is another matter."""

import gzip
import http.client
import socket
import time

import pytest

from tests.faultstore import KINDS, FaultStore, Toxic
from tests.faultstore.toxics import Toxics

DATA = bytes(range(200))


def ask(faults, target="/bucket/k", method="GET", body=None, timeout=60, **headers):
    """Status, headers and body of a request on a connection of its own; the error where there is no reply."""
    connection = http.client.HTTPConnection(faults.url.removeprefix("http://"), timeout=timeout)
    try:
        connection.request(method, target, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


@pytest.fixture
def faults(faults):
    faults.put("k", DATA)
    return faults


def test_without_toxics_it_is_an_ordinary_store(faults):
    status, headers, body = ask(faults)
    assert (status, headers["Content-Length"], body) == (200, "200", DATA)


def test_latency_delays_the_reply(faults):
    faults.plant(Toxic("latency", seconds=0.2))
    begin = time.monotonic()
    assert ask(faults)[2] == DATA
    assert time.monotonic() - begin >= 0.19


def test_bandwidth_is_shared_by_all_connections_and_holds_in_both_directions(faults):
    faults.put("big", bytes(50_000))
    faults.plant(Toxic("bandwidth", rate=500_000))
    connections = [http.client.HTTPConnection(faults.url.removeprefix("http://"), timeout=60) for _ in range(2)]
    begin = time.monotonic()
    for connection in connections:
        connection.request("GET", "/bucket/big")
    assert [len(connection.getresponse().read()) for connection in connections] == [50_000, 50_000]
    assert time.monotonic() - begin >= 0.17, "100,000 bytes at 500,000 a second, less what may come in a burst"
    begin = time.monotonic()
    connections[0].request("PUT", "/bucket/up", bytes(100_000))
    assert connections[0].getresponse().read() == b""
    assert time.monotonic() - begin >= 0.17
    for connection in connections:
        connection.close()


def test_throttle_answers_429_above_its_rate(faults):
    faults.plant(Toxic("throttle", rate=5))
    statuses = [ask(faults)[0] for _ in range(12)]
    assert statuses[:5] == [200] * 5
    assert statuses.count(429) >= 5


@pytest.mark.parametrize(
    ("toxic", "status", "code"),
    [
        (Toxic("http"), 503, b"SlowDown"),
        (Toxic("http", status=403, code="ExpiredToken"), 403, b"ExpiredToken"),
        (Toxic("http", status=400, code="RequestTimeout"), 400, b"RequestTimeout"),
        (Toxic("http", status=500), 500, b"InternalError"),
        (Toxic("http", status=429), 429, b"TooManyRequests"),
    ],
)
def test_http_is_the_error_and_nothing_is_done(faults, toxic, status, code):
    faults.plant(toxic)
    found, _, body = ask(faults)
    assert (found, b"<Code>" + code + b"</Code>" in body) == (status, True)
    assert ask(faults, method="PUT", body=b"new")[0] == status
    assert faults.get("k") == DATA


def test_a_redirect_says_where_to(faults):
    faults.plant(Toxic("http", status=307, location="http://127.0.0.1:9/elsewhere"))
    status, headers, _ = ask(faults)
    assert (status, headers["Location"]) == (307, "http://127.0.0.1:9/elsewhere")


def received(faults, quiet=60):
    """Bytes of the body that came over a bare socket, and how it ended: by a quiet after the first of them, perhaps."""
    host, port = faults.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connected:
        connected.sendall(b"GET /bucket/k HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data = b""
        try:
            while piece := connected.recv(65536):
                data += piece
                if data.partition(b"\r\n\r\n")[2]:
                    connected.settimeout(quiet)
        except (ConnectionResetError, TimeoutError) as error:
            return data.partition(b"\r\n\r\n")[2], type(error)
        return data.partition(b"\r\n\r\n")[2], None


def test_reset_peer_resets_before_the_reply_or_within_its_body(faults):
    faults.plant(Toxic("reset_peer", count=1), Toxic("reset_peer", after=7, nth=2))
    assert received(faults) == (b"", ConnectionResetError)
    body, end = received(faults)
    assert end is ConnectionResetError
    assert body in {b"", DATA[:7]}, "a reset may throw away what was not read yet"


def test_truncate_ends_the_body_early_with_and_without_a_word(faults):
    faults.plant(Toxic("truncate", after=7, count=1), Toxic("truncate", honest=True, nth=2))
    assert received(faults) == (DATA[:7], None)
    status, headers, body = ask(faults)
    assert (status, headers["Content-Length"], body) == (200, "100", DATA[:100])


def test_corrupt_flips_so_many_bits_or_the_one(faults):
    faults.plant(Toxic("corrupt", at=10, count=1), Toxic("corrupt", bits=3, nth=2))
    assert ask(faults)[2] == bytes([0, 1 ^ 4]) + DATA[2:]
    changed = ask(faults)[2]
    assert sum((one ^ other).bit_count() for one, other in zip(changed, DATA, strict=True)) == 3


def test_slow_close_says_that_it_closes_and_does_so_late(faults):
    faults.plant(Toxic("slow_close", seconds=0.2))
    begin = time.monotonic()
    body, end = received(faults)
    assert (body, end) == (DATA, None)
    assert time.monotonic() - begin >= 0.19


def test_stall_is_one_byte_and_then_nothing(faults):
    faults.plant(Toxic("stall", seconds=30))
    assert received(faults, quiet=0.3) == (DATA[:1], TimeoutError)


def test_lost_ack_does_it_and_says_nothing(faults):
    faults.plant(Toxic("lost_ack", method="PUT"))
    with pytest.raises(http.client.RemoteDisconnected):
        ask(faults, method="PUT", body=b"new")
    assert faults.get("k") == b"new"
    assert faults.log()[-1].status == 0


def test_drop_body_acknowledges_an_empty_object(faults):
    faults.plant(Toxic("drop_body"))
    assert ask(faults, method="PUT", body=b"new")[0] == 200
    assert faults.get("k") == b""


def test_swap_body_replaces_the_object_between_two_ranges(faults):
    faults.plant(Toxic("swap_body", nth=2, count=1))
    _, mark, begin = ask(faults, Range="bytes=0-99")
    _, other_mark, end = ask(faults, Range="bytes=100-199")
    assert begin == DATA[:100]
    assert end == DATA[::-1][100:]
    assert mark["ETag"] != other_mark["ETag"]
    assert ask(faults, **{"If-Match": mark["ETag"]})[0] == 412


def test_ignore_precondition_lets_every_create_win(faults):
    assert ask(faults, method="PUT", body=b"1", **{"If-None-Match": "*"})[0] == 412
    faults.plant(Toxic("ignore_precondition"))
    assert ask(faults, method="PUT", body=b"1", **{"If-None-Match": "*"})[0] == 200


def test_gzip_compresses_on_the_way(faults):
    faults.plant(Toxic("gzip"))
    _, headers, body = ask(faults)
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == DATA


def test_lost_request_does_nothing_and_resets(faults):
    faults.plant(Toxic("lost_request", method="PUT"))
    with pytest.raises(ConnectionResetError):
        ask(faults, method="PUT", body=b"new")
    assert faults.get("k") == DATA
    assert (faults.log()[-1].status, faults.log()[-1].toxics) == (0, ["lost_request"])


def test_late_read_does_not_find_what_was_just_written_and_late_list_does_not_show_it(faults):
    faults.plant(Toxic("late_read", seconds=60.0), Toxic("late_list", seconds=60.0))
    assert ask(faults, method="PUT", body=b"new")[0] == 200
    assert [ask(faults, method=method)[0] for method in ("GET", "HEAD")] == [404, 404]
    assert b"<KeyCount>0<" in ask(faults, "/bucket?list-type=2")[2]
    assert ask(faults, method="PUT", body=b"1", **{"If-None-Match": "*"})[0] == 412, "writes know of it"
    faults.heal()
    faults.plant(Toxic("late_read", seconds=1e-9), Toxic("late_list", seconds=1e-9))
    assert ask(faults)[2] == b"new"
    assert b"<KeyCount>1<" in ask(faults, "/bucket?list-type=2")[2]


def test_swap_body_may_put_another_object_there(faults):
    faults.put("other", b"z" * 200)
    faults.plant(Toxic("swap_body", key="k", nth=2, source="other"))
    assert [ask(faults)[2][:1] for _ in range(2)] == [DATA[:1], b"z"]


def test_a_toxic_that_lasts_a_while_is_over_then():
    toxics = Toxics()
    toxics.add(Toxic("http", lasting=5.0, nth=2))
    struck = [bool(toxics.strikes("GET", "k", "", now=now)) for now in (100.0, 107.0, 111.9, 112.1, 200.0)]
    assert struck == [False, True, True, False, False]


def test_a_toxic_strikes_the_requests_that_it_names(faults):
    for key in ("a.mds", "b.mds", "index.json"):
        faults.put(key, b"1")
    faults.plant(Toxic("http", key="*.mds", method="GET", nth=2, count=2))
    wanted = ["a.mds", "index.json", "b.mds", "a.mds", "a.mds"]
    assert [ask(faults, f"/bucket/{key}")[0] for key in wanted] == [200, 200, 503, 503, 200]
    assert ask(faults, "/bucket/a.mds", "HEAD")[0] == 200
    assert [entry.toxics for entry in faults.log(key=".mds")] == [[], ["http"], ["http"], [], []]
    faults.heal()
    faults.plant(Toxic("http", access="OLD"))
    by = {"Authorization": "AWS4-HMAC-SHA256 Credential=OLD/20260101/us-east-1/s3/aws4_request, Signature=1"}
    assert [ask(faults)[0], ask(faults, **by)[0]] == [200, 503]


def faulty(seed, order):
    """Which of twenty requests to each of two keys fail, asked in some order."""
    with FaultStore(Toxic("http", probability=0.3), seed=seed) as faults:
        found = {"a": [], "b": []}
        for key in order:
            found[key].append(ask(faults, f"/bucket/{key}")[0] == 503)
        return found


def test_equal_seeds_give_equal_faults_however_requests_mix():
    one, other = faulty(5, "ab" * 20), faulty(5, "a" * 20 + "b" * 20)
    assert one == other
    assert one != faulty(6, "ab" * 20)
    assert 3 <= sum(one["a"] + one["b"]) <= 21


def test_nonsense_is_refused():
    for kind, options in {
        "unheard_of": {},
        "bandwidth": {},
        "http": {"probability": 1.5},
        "latency": {"nth": 0},
    }.items():
        with pytest.raises(ValueError, match=r"unknown toxic|expected|needs"):
            Toxic(kind, **options)


def test_every_kind_is_tested_here():
    import ast
    from pathlib import Path

    planted = {
        node.args[0].value
        for node in ast.walk(ast.parse(Path(__file__).read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "Toxic"
        and isinstance(node.args[0], ast.Constant)
    }
    assert set(KINDS) <= planted


def test_close_ends_connections_that_stall_and_a_program_ends_with_its_parent(faults):
    with FaultStore(Toxic("stall", seconds=300), own_process=True) as server:
        server.put("k", DATA)
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=500)
        connection.request("GET", "/bucket/k")
        reply = connection.getresponse()
        begin = time.monotonic()
        server._process.stdin.close()
        assert server._process.wait(120) == 0
        with pytest.raises(http.client.IncompleteRead):
            reply.read()
        assert time.monotonic() - begin < 200
        connection.close()
