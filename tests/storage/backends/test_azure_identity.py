"""Azure identity: logins by token, expiry of tokens, and no anonymous access instead."""

import logging
import pickle
import sys
import time

import pytest

from smalti.catalog import load_manifest
from smalti.errors import MissingDependency, StoreAuthError
from smalti.storage import open_store
from smalti.writer import MDSWriter
from tests.storage.servers.identity_server import IdentityServer
from tests.storage.test_secrets import everything_shown

SECRET = "Q0FOQVJZLWlkZW50aXR5"
TENANT = "ab1f708d-50f6-404c-a006-d71b2ac7a606"


@pytest.fixture
def no_login(clean_environment, tmp_path):
    """An environment without logins: no `az`, no metadata service."""
    clean_environment.setenv("PATH", str(tmp_path))
    clean_environment.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:9")
    return clean_environment


@pytest.fixture
def managed(no_login):
    """A server of managed identities, as on App Service; the environment names it."""
    with IdentityServer(SECRET) as server:
        no_login.setenv("IDENTITY_ENDPOINT", f"{server.url}/msi/token")
        no_login.setenv("IDENTITY_HEADER", SECRET)
        yield server


@pytest.fixture
def entra(no_login, certificate):
    """A server of Microsoft Entra's protocol; the environment names it."""
    with IdentityServer(SECRET, certificate) as server:
        no_login.setenv("AZURE_AUTHORITY_HOST", server.url)
        no_login.setenv("AZURE_TENANT_ID", TENANT)
        no_login.setenv("AZURE_CLIENT_ID", "robot")
        yield server


def open_with(server, container, **options):
    return open_store(f"az://{container}/set", {"account_name": server.account, "account_host": server.host, **options})


def test_a_managed_identity_writes_and_reads_a_set(azurite_https, secure_container, managed):
    store = open_with(azurite_https, secure_container)
    with MDSWriter(out=store, columns={"x": "int"}) as writer:
        for number in range(5):
            writer.write({"x": number})
    assert load_manifest(open_with(azurite_https, secure_container)).rows == 5
    assert len(managed.requests) == 2, "one token for each of the two stores, not for each request"


def test_a_service_principal_in_the_environment_logs_in(azurite_https, secure_container, entra, no_login):
    no_login.setenv("AZURE_CLIENT_SECRET", SECRET)
    store = open_with(azurite_https, secure_container)
    store.put("k", b"1")
    assert store.get("k") == b"1"
    assert [request.split()[0] for request in entra.requests] == [f"/{TENANT}/oauth2/v2.0/token"]


def test_a_workload_with_a_federated_token_logs_in(azurite_https, secure_container, entra, no_login, tmp_path):
    (tmp_path / "token").write_text(SECRET)
    no_login.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    store = open_with(azurite_https, secure_container)
    store.put("k", b"1")
    assert store.get("k") == b"1"
    assert "client_assertion_type" in entra.requests[0]


def test_a_service_principal_in_the_options_logs_in_and_an_incomplete_one_is_refused(
    azurite_https, secure_container, entra, no_login
):
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID"):
        no_login.delenv(name)
    whole = {"tenant_id": TENANT, "client_id": "robot", "client_secret": SECRET}
    store = pickle.loads(pickle.dumps(open_with(azurite_https, secure_container, **whole)))
    store.put("k", b"1")
    assert store.get("k") == b"1"
    with pytest.raises(StoreAuthError, match=r"\['tenant_id', 'client_secret'\] are missing"):
        open_with(azurite_https, secure_container, client_id="robot").get("k")


@pytest.mark.slow
def test_a_token_that_expires_during_a_run_is_renewed_once(azurite_https, secure_container, managed):
    managed.valid_seconds = [8.0]  # the first put, which imports the client, takes less on the slowest machine
    store = open_with(azurite_https, secure_container)
    store.put("k", b"1")
    assert len(managed.requests) == 1
    time.sleep(8.5)
    assert [store.get("k") for _ in range(3)] == [b"1"] * 3
    assert len(managed.requests) == 2


@pytest.mark.parametrize("use", ["get", "size"])
def test_a_token_that_the_store_refuses_early_is_renewed_once(azurite_https, secure_container, managed, use):
    """The server promised a day; clocks differ, and tokens are revoked."""
    open_with(azurite_https, secure_container).put("k", b"1")
    managed.requests.clear()
    managed.valid_seconds, managed.declared_seconds = [-60.0], 86400
    store = open_with(azurite_https, secure_container)
    assert getattr(store, use)("k") == {"get": b"1", "size": 1}[use]
    assert len(managed.requests) == 2
    managed.requests.clear()
    managed.valid_seconds = [-60.0] * 9
    with pytest.raises(StoreAuthError, match="refused"):
        getattr(open_with(azurite_https, secure_container), use)("k")
    assert len(managed.requests) == 2, "once"


@pytest.mark.slow
def test_a_transient_fault_of_the_token_endpoint_is_retried(azurite_https, secure_container, managed):
    managed.refusal, managed.num_refusals = (503, "busy"), 2
    store = open_with(azurite_https, secure_container)
    store.put("k", b"1")
    assert len(managed.requests) == 3


@pytest.mark.parametrize("public", [None, "blob"])
def test_a_refused_identity_lists_what_was_tried_and_is_never_anonymous(
    azurite_https, secure_container, certificate, managed, caplog, public
):
    """The endpoint echoes requests; anonymous access would succeed, because the container is public."""
    from azure.storage.blob import BlobServiceClient

    text, trusted = azurite_https.connection_string, {"connection_verify": str(certificate.authority)}
    with BlobServiceClient.from_connection_string(text, **trusted) as client:
        client.get_container_client(secure_container).upload_blob("set/k", b"1")
        client.get_container_client(secure_container).set_container_access_policy({}, public_access=public)
    caplog.set_level(logging.INFO)
    managed.refusal, counts = (400, "no identity of this name"), []
    store = open_with(azurite_https, secure_container)
    for use in (lambda: store.get("k"), lambda: store.put("k", b"2"), lambda: store.size("k"), lambda: [*store.list()]):
        with pytest.raises(StoreAuthError) as caught:
            use()
        counts.append(len(managed.requests))
        message = str(caught.value)
        for part in (
            f"abfs://{secure_container}/set",
            "Azure identity gave no token",
            "['IDENTITY_ENDPOINT', 'IDENTITY_HEADER'] set",
            "ManagedIdentityCredential",
            "AZURE_CLIENT_SECRET",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "spark.executorEnv",
        ):
            assert part in message, message
        assert SECRET not in everything_shown(caught.value)
    assert SECRET not in caplog.text
    assert counts[:3] == [1, 2, 3], "one request for each, and no other way is tried; a listing may make two"
    assert all(SECRET in request for request in managed.requests), "it was sent and echoed"


def test_the_secret_of_a_refused_service_principal_is_not_shown(
    azurite_https, secure_container, entra, no_login, caplog
):
    no_login.setenv("AZURE_CLIENT_SECRET", f"not-{SECRET}")
    caplog.set_level(logging.INFO)
    with pytest.raises(StoreAuthError, match=r"AZURE_CLIENT_SECRET.*EnvironmentCredential: .*AADSTS7000215") as caught:
        open_with(azurite_https, secure_container).get("k")
    assert SECRET not in everything_shown(caught.value) + caplog.text
    assert len(entra.requests) == 1


def test_without_any_identity_the_message_says_that_no_variable_is_set(azurite_https, secure_container, no_login):
    with pytest.raises(StoreAuthError, match=r"with the variables of none of its logins set.*AZURE_CLIENT_SECRET"):
        open_with(azurite_https, secure_container).get("k")


def test_a_token_is_never_shown(azurite_https, secure_container, managed, caplog):
    caplog.set_level(logging.INFO)
    store = open_with(azurite_https, secure_container)
    managed.valid_seconds, managed.declared_seconds = [-60.0] * 2, 86400
    with pytest.raises(StoreAuthError) as caught:
        store.get("k")
    shown = everything_shown(caught.value) + caplog.text + repr(store) + repr(pickle.dumps(store))
    assert [token for token in managed.issued if token in shown or token.split(".")[1] in shown] == []
    assert len(managed.issued) == 2


def test_without_azure_identity_the_message_names_what_to_install(clean_environment, monkeypatch):
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    monkeypatch.setitem(sys.modules, "azure.identity.aio", None)
    with pytest.raises(MissingDependency, match=r"azure.identity.*pip install 'smalti\[azure\]'"):
        open_store("az://container/set", {"account_name": "acct"}).get("k")
