"""Reads from web servers and the Hugging Face Hub: correct errors, correct ranges, logins."""

import pytest

from smalti.errors import StoreAuthError, StoreError, StoreNotFound
from smalti.storage import open_store
from tests.storage.servers.web_server import WebServer

FILES = {"/set/k": b"0123456789"}


def test_a_server_that_ignores_ranges_gives_the_right_bytes():
    """fsspec's client would return the beginning of the file for any range."""
    with WebServer(FILES) as server:
        server.ranges = False
        store = open_store(f"{server.url}/set")
        assert store.get_range("k", 4, 6) == b"45"
        assert store.get_range("k", 8, 99) == b"89"
        assert store.get_range("k", 20, 30) == b""


@pytest.mark.parametrize("ranges", [True, False])
def test_sizes_are_found_without_head_requests(ranges):
    with WebServer(FILES) as server:
        server.heads, server.ranges = False, ranges
        store = open_store(f"{server.url}/set")
        assert store.size("k") == 10
        assert not store.exists("none")


def test_a_required_login_is_not_reported_as_a_missing_file():
    """fsspec's client reports it as one."""
    with WebServer(FILES, token="secret-token") as server:
        for use in ("get", "size", "exists"):
            with pytest.raises(StoreAuthError, match="headers"):
                getattr(open_store(f"{server.url}/set"), use)("k")
        good = {"headers": {"Authorization": "Bearer secret-token"}}
        assert open_store(f"{server.url}/set", good).get("k") == b"0123456789"
        bad = {"headers": {"Authorization": "Bearer canary-canary"}}
        with pytest.raises(StoreAuthError) as caught:
            open_store(f"{server.url}/set", bad).get("k")
        assert "canary" not in f"{caught.value} {caught.value.__cause__!r}"


def test_a_login_is_not_sent_to_the_target_of_a_redirect():
    with WebServer(FILES) as other, WebServer({}, token="secret-token") as first:
        first.redirects["/set/k"] = f"{other.url}/set/k"
        options = {"headers": {"Authorization": "Bearer secret-token"}}
        assert open_store(f"{first.url}/set", options).get("k") == b"0123456789"
        assert "authorization" not in other.headers[-1]


@pytest.mark.parametrize("place", ["headers", "client_kwargs"])
def test_headers_of_the_caller_are_only_sent_to_the_same_server(place):
    """A login may have any name, such as GitLab's `PRIVATE-TOKEN`."""
    headers = {"PRIVATE-TOKEN": "canary", "X-Api-Key": "canary"}
    options = {"headers": headers} if place == "headers" else {"client_kwargs": {"headers": headers}}
    with WebServer(FILES) as other, WebServer(FILES) as first:
        first.redirects |= {"/set/here": "/set/k", "/set/elsewhere": f"{other.url}/set/k"}
        store = open_store(f"{first.url}/set", options)
        assert store.get("here") == b"0123456789"
        assert first.headers[-1]["x-api-key"] == first.headers[-1]["private-token"] == "canary"
        assert store.get_range("elsewhere", 4, 6) == b"45"
        assert "canary" not in other.headers[-1].values()
        assert other.headers[-1]["range"] == "bytes=4-5"


@pytest.mark.parametrize("content_range", ["bytes 5-6/10", "bytes 4-4/10", "nonsense"])
def test_another_part_than_was_requested_is_an_error(content_range):
    class Other(WebServer):
        """A server that sends its own part for every range."""

        def finish_request(self, request, client_address):
            request.recv(65536)
            body = b"5" if content_range == "bytes 4-4/10" else b"56"
            request.sendall(
                f"HTTP/1.1 206 Partial\r\nContent-Range: {content_range}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )

    with Other(FILES) as server, pytest.raises(StoreError, match="another part"):
        open_store(f"{server.url}/set").get_range("k", 4, 6)


def test_a_token_is_not_sent_to_another_server_with_the_next_page_of_a_listing(clean_environment):
    files = {f"/datasets/owner/name/resolve/main/{number}": b"1" for number in range(5)}
    with WebServer(files) as other, WebServer({}, token="hf_right") as server:
        clean_environment.setenv("HF_ENDPOINT", server.url)
        # The other server answers the first page, whose link to the next page has its own address.
        server.redirects["/api/datasets/owner/name/tree/main"] = f"{other.url}/api/datasets/owner/name/tree/main"
        store = open_store("hf://datasets/owner/name", {"token": "hf_right"})
        assert [each.key for each in store.list()] == ["0", "1", "2", "3", "4"]
        assert not any("authorization" in headers for headers in other.headers)


def test_listing_a_web_server_is_refused():
    with WebServer(FILES) as server, pytest.raises(StoreError, match="cannot be listed"):
        list(open_store(f"{server.url}/set").list())


def test_the_hub_gets_the_token_in_the_environment(clean_environment):
    files = {"/datasets/owner/name/resolve/main/k": b"1"}
    with WebServer(files, token="hf_right") as server:
        clean_environment.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(StoreAuthError, match="HF_TOKEN"):
            open_store("hf://datasets/owner/name").get("k")
        clean_environment.setenv("HF_TOKEN", "hf_canarycanary")
        with pytest.raises(StoreAuthError) as caught:
            open_store("hf://datasets/owner/name").get("k")
        assert "canary" not in f"{caught.value} {caught.value.__cause__!r}"
        clean_environment.setenv("HF_TOKEN", "hf_right")
        assert open_store("hf://datasets/owner/name").get("k") == b"1"
        assert open_store("hf://datasets/owner/name", {"token": "hf_right"}).get("k") == b"1"


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("hf://datasets/owner/name", "/datasets/owner/name/resolve/main/a/k"),
        ("hf://datasets/owner/name@v1.0", "/datasets/owner/name/resolve/v1.0/a/k"),
        ("hf://datasets/owner/name@refs%2Fconvert%2Fx", "/datasets/owner/name/resolve/refs/convert/x/a/k"),
        ("hf://owner/model@v1", "/owner/model/resolve/v1/a/k"),
    ],
)
def test_an_address_of_the_hub_contains_repository_and_revision(clean_environment, address, path):
    with WebServer({path: b"1"}) as server:
        store = open_store(address, {"endpoint": server.url})
        assert store.get("a/k") == b"1"
        assert store.child("a").get("k") == b"1"


def test_an_address_of_the_hub_without_a_repository_is_refused():
    with pytest.raises(StoreError, match="<owner>/<name>"):
        open_store("hf://datasets/owner").get("k")


def test_a_missing_repository_is_not_found(clean_environment):
    with WebServer({}) as server, pytest.raises(StoreNotFound):
        open_store("hf://datasets/owner/none", {"endpoint": server.url}).get("k")


def test_writes_to_the_hub_are_refused_with_advice(clean_environment, tmp_path):
    """The Hub would refuse a commit for each object, and readers would see partial sets; no request is sent."""
    (tmp_path / "f").write_bytes(b"1")
    with WebServer({}) as server:
        store = open_store("hf://datasets/owner/name/train", {"endpoint": server.url})
        for write in (
            lambda: store.put("k", b"1"),
            lambda: store.put_if_absent("k", b"1"),
            lambda: store.put_file("k", tmp_path / "f"),
            lambda: store.delete("k"),
        ):
            with pytest.raises(StoreError, match=r"train/k: .*hf upload owner/name <folder> --repo-type dataset"):
                write()
        assert server.log == []


@pytest.mark.parametrize("location", ["ftp://h/x?any=CANARY", "data:text/plain,CANARY", "https:///x?any=CANARY"])
def test_a_redirect_that_is_not_followed_does_not_show_its_location(location):
    with WebServer(FILES) as server:
        server.redirects["/set/moved"] = location
        with pytest.raises(StoreError, match="which is not followed") as caught:
            open_store(f"{server.url}/set").get("moved")
    assert "CANARY" not in repr([caught.value, caught.value.__cause__, caught.value.__context__])
