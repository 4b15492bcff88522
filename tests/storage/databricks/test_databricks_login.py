"""Logins to a workspace: errors list what is missing, expired credentials are renewed once, waits are bounded."""

import socket
import time

import pytest

from smalti.errors import StoreAuthError, StoreError
from smalti.storage import open_store
from smalti.storage.databricks.workspace import BoundedClock

FOLDER = "dbfs:/Volumes/main/default/vol/x"
PLACES = pytest.mark.parametrize("place", [FOLDER, "dbfs:/FileStore/x"])


def calls(server):
    return [path for _, path in server.log if not path.startswith("/.well-known")]


@PLACES
def test_without_a_login_the_message_lists_what_was_found_and_what_to_set(clean_environment, tmp_path, place):
    """The SDK's own message is `default auth: cannot configure default credentials`."""
    with pytest.raises(StoreAuthError) as caught:
        open_store(place).get("k")
    text = str(caught.value)
    for part in (
        "cannot configure default credentials",
        "the storage options [], the variables [], no file",
        f"{tmp_path / 'home'}/.databrickscfg",
        "Set DATABRICKS_HOST and DATABRICKS_TOKEN",
        "DATABRICKS_CLIENT_ID and DATABRICKS_CLIENT_SECRET",
        "DATABRICKS_CONFIG_PROFILE",
        "Loader workers, training worker processes and Spark executors need them too",
        "spark.executorEnv.DATABRICKS_HOST",
    ):
        assert part in text, part


def test_an_incomplete_login_names_the_missing_part(files_api, clean_environment):
    clean_environment.delenv("DATABRICKS_HOST")
    clean_environment.setenv("DATABRICKS_TOKEN", "dapi99999999canary")
    with pytest.raises(StoreAuthError, match=r"the variables \['DATABRICKS_TOKEN'\]") as caught:
        open_store(FOLDER).get("k")
    assert "canary" not in f"{caught.value} {caught.value.__cause__!r} {caught.value.facts}"
    clean_environment.delenv("DATABRICKS_TOKEN")
    with pytest.raises(StoreAuthError, match=r"the storage options \['host'\]"):
        open_store(FOLDER, {"host": files_api.url}).get("k")


def test_a_profile_logs_in(files_api, clean_environment, tmp_path):
    files_api.files[f"{files_api.volume}/x/k"] = b"1"
    files_api.changed[f"{files_api.volume}/x/k"] = 0
    for name in ("DATABRICKS_HOST", "DATABRICKS_TOKEN"):
        clean_environment.delenv(name)
    profiles = tmp_path / "profiles"
    profiles.write_text(f"[work]\nhost = {files_api.url}\ntoken = {files_api.token}\n")
    clean_environment.setenv("DATABRICKS_CONFIG_FILE", str(profiles))
    clean_environment.setenv("DATABRICKS_CONFIG_PROFILE", "work")
    assert open_store(FOLDER).get("k") == b"1"


def test_a_service_principal_logs_in_and_its_short_lived_token_is_fetched(files_api, clean_environment):
    """OAuth, machine to machine: the SDK finds the token server and requests a token."""
    clean_environment.delenv("DATABRICKS_TOKEN")
    clean_environment.setenv("DATABRICKS_CLIENT_ID", "robot")
    clean_environment.setenv("DATABRICKS_CLIENT_SECRET", "canary-secret")
    files_api.login = "robot", "canary-secret"
    store = open_store(FOLDER)
    store.put("k", b"1")
    assert store.get("k") == b"1"
    files_api.token = "another"  # revoked: the next request is refused, and the SDK requests a new token
    assert store.get("k") == b"1"


@PLACES
@pytest.mark.parametrize(
    "refusal", [(401, "UNAUTHENTICATED", "expired"), (403, "PERMISSION_DENIED", "Invalid access token.")]
)
def test_an_expired_token_is_renewed_once(files_api, clean_environment, place, refusal):
    store = open_store(place)
    store.put("k", b"1")
    files_api.refusal = refusal
    files_api.token = "dapi11111111111111111111"
    clean_environment.setenv("DATABRICKS_TOKEN", files_api.token)
    assert store.get("k") == b"1"
    store.put("k", b"22")
    files_api.token = "dapi22222222222222222222"  # changed without notice to this process
    files_api.log.clear()
    with pytest.raises(StoreAuthError, match="refused"):
        store.get("k")
    assert len(calls(files_api)) == 1, "the same token is not tried again"


@PLACES
def test_a_token_without_rights_is_not_renewed(files_api, place):
    store = open_store(place)
    store.put("k", b"1")
    files_api.log.clear()
    files_api.fail_with = [403]
    with pytest.raises(StoreAuthError, match="refused"):
        store.get("k")
    assert len(calls(files_api)) == 1


@PLACES
def test_a_throttled_request_waits_for_retry_after(files_api, place):
    store = open_store(place)
    store.put("k", b"1")
    files_api.retry_after, files_api.fail_with = "0", [429, 429, 503]
    assert store.get("k") == b"1"
    assert files_api.fail_with == []


def test_a_long_retry_after_is_limited(files_api):
    store = open_store(FOLDER, {"clock": BoundedClock(0.01), "request_attempts": 2})
    store.put("k", b"1")
    files_api.retry_after, files_api.fail_with = "86400", [429]
    assert store.get("k") == b"1"


@pytest.mark.slow
def test_a_dead_host_is_an_error_within_a_minute():
    """By default the SDK retries for ten minutes."""
    options = {"host": "http://127.0.0.1:9", "token": "dapi0123456789", "request_attempts": 1}
    with pytest.raises(StoreError):
        open_store(FOLDER, options).get("k")


@pytest.mark.slow
def test_a_silent_workspace_times_out_at_the_limit_of_the_caller():
    """The SDK waits 30 s for each request, and the store cannot interrupt it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = {"host": host, "token": "dapi0123456789", "request_attempts": 1, "request_timeout": 0.5}
        begin = time.monotonic()
        with pytest.raises(StoreError):
            open_store(FOLDER, options).get("k")
        assert time.monotonic() - begin < 30, "twice 30 s without the limit"
