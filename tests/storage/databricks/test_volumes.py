"""Unity Catalog volumes: credentials, faults, and requests."""

import time

import pytest

from smalti.errors import StoreAuthError, StoreError, StoreNotFound
from smalti.storage import open_store

VOLUME = "dbfs:/Volumes/main/default/vol"


@pytest.mark.parametrize("missing", ["DATABRICKS_HOST", "DATABRICKS_TOKEN", "both"])
def test_missing_credentials_name_both_variables_and_the_workers(files_api, clean_environment, missing):
    for name in ("DATABRICKS_HOST", "DATABRICKS_TOKEN"):
        if missing in (name, "both"):
            clean_environment.delenv(name)
    with pytest.raises(StoreAuthError, match=r"DATABRICKS_HOST and DATABRICKS_TOKEN.*worker processes") as caught:
        open_store(f"{VOLUME}/x").get("k")
    assert "dapi" not in str(caught.value)


def test_a_wrong_token_is_refused_and_not_shown(files_api):
    store = open_store(f"{VOLUME}/x", {"host": files_api.url, "token": "dapi99999999canary"})
    with pytest.raises(StoreAuthError, match="refused") as caught:
        store.put("k", b"1")
    assert "canary" not in str(caught.value)


def test_two_stores_with_two_tokens_do_not_mix(files_api):
    good = open_store(f"{VOLUME}/x")
    good.put("k", b"1")
    bad = open_store(f"{VOLUME}/x", {"token": "dapi00000000000000000000"})
    with pytest.raises(StoreAuthError):
        bad.get("k")
    assert good.get("k") == b"1"


def test_a_volume_that_does_not_exist_is_not_found(files_api):
    store = open_store("dbfs:/Volumes/main/default/other/x")
    for use in (lambda: store.get("k"), lambda: store.put("k", b"1")):
        with pytest.raises(StoreNotFound, match="other/x/k"):
            use()


def test_server_errors_are_retried(files_api):
    store = open_store(f"{VOLUME}/x")
    store.put("k", b"1")
    files_api.fail_with = [500, 502]
    assert store.get("k") == b"1"
    files_api.fail_with = [500] * 50
    begin = time.monotonic()
    with pytest.raises(StoreError):
        store.get("k")
    assert time.monotonic() - begin < 40


def test_a_range_requests_no_more_from_the_server(files_api):
    store = open_store(f"{VOLUME}/x")
    store.put("k", bytes(range(100)))
    files_api.log.clear()
    assert store.get_range("k", 10, 13) == b"\x0a\x0b\x0c"
    assert [(verb, path.rpartition("/")[2]) for verb, path in files_api.log] == [("GET", "k")]


def test_listings_are_read_to_the_last_page(files_api):
    store = open_store(f"{VOLUME}/x")
    for number in range(10):
        store.put(f"d/{number}", b"1")
    assert [info.key for info in store.list()] == [f"d/{number}" for number in range(10)]


def test_a_refused_listing_is_an_error_not_an_empty_folder(files_api):
    store = open_store(f"{VOLUME}/x")
    store.put("d/k", b"1")
    files_api.fail_with = [403] * 9
    with pytest.raises(StoreAuthError):
        list(store.list())
