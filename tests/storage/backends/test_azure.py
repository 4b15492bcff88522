"""Azure: every kind of login, MosaicML's addresses and variables, and no accidental anonymous access."""

import os
import subprocess
import sys

import pytest

from smalti.errors import StoreAuthError, StoreNotFound
from smalti.storage import open_store

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


def names_of(server):
    return {"account_name": server.account, "account_host": server.host}


def test_the_account_key_opens_a_container(azurite_https, secure_container):
    store = open_store(f"az://{secure_container}/set", {**names_of(azurite_https), "account_key": azurite_https.key})
    store.put("k", b"1")
    assert store.get("k") == b"1"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("AZURE_ACCOUNT_NAME", "AZURE_ACCOUNT_ACCESS_KEY"),
    ],
)
@pytest.mark.parametrize("address", ["az://{}/set", "azure-dl://{}/set", "azure://whatever/{}/set", "abfss://{}/set"])
def test_names_and_keys_of_the_environment_work_with_every_address(
    azurite_https, secure_container, clean_environment, name, key, address
):
    clean_environment.setenv(name, azurite_https.account)
    clean_environment.setenv(key, azurite_https.key)
    store = open_store(address.format(secure_container), {"account_host": azurite_https.host})
    assert store.url == f"abfs://{secure_container}/set"
    store.put("k", b"1")
    assert [info.key for info in store.list()] == ["k"]


def test_the_account_of_an_azure_address_counts_if_the_environment_has_none(
    azurite_https, secure_container, clean_environment
):
    clean_environment.setenv("AZURE_ACCOUNT_ACCESS_KEY", azurite_https.key)
    address = f"azure://{azurite_https.account}.blob.core.windows.net/{secure_container}/set"
    store = open_store(address, {"account_host": azurite_https.host})
    store.put("k", b"1")
    assert store.get("k") == b"1"


def test_a_signature_grants_its_rights_and_no_others(azurite_http, container):
    def signed(permission):
        text = (
            f"BlobEndpoint=http://{azurite_http.host};SharedAccessSignature={azurite_http.sign(container, permission)}"
        )
        return open_store(f"az://{container}/set", {"connection_string": text})

    writer, reader = signed("rwdlc"), signed("rl")
    writer.put("k", b"1")
    writer.put_if_absent("v", b"1")
    writer.check_exclusive_puts("probe")
    assert reader.get("k") == b"1"
    assert [info.key for info in reader.list()] == ["k", "v"]
    assert not reader.exists("none")
    with pytest.raises(StoreAuthError, match="refused"):
        reader.put("k", b"2")
    with pytest.raises(StoreAuthError, match="refused"):
        reader.delete("k")
    assert writer.get("k") == b"1"


def test_a_signature_with_the_account_name_opens_a_container(azurite_https, secure_container, clean_environment):
    clean_environment.setenv("AZURE_STORAGE_SAS_TOKEN", azurite_https.sign(secure_container, "rwdlc"))
    store = open_store(f"az://{secure_container}/set", names_of(azurite_https))
    store.put("k", b"1")
    assert store.get("k") == b"1"


def test_a_wrong_key_is_refused_and_never_shown(azurite_http, container):
    key = "Q0FOQVJZQ0FOQVJZQ0FOQVJZ"
    text = azurite_http.connection_string.replace(azurite_http.key, key)
    store = open_store(f"az://{container}/set", {"connection_string": text})
    for use in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: list(store.list())):
        with pytest.raises(StoreAuthError, match="refused") as caught:
            use()
        assert key not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"


def test_a_key_in_the_environment_is_never_shown(azurite_http, container, clean_environment):
    key = "Q0FOQVJZQ0FOQVJZQ0FOQVJZ"
    clean_environment.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", azurite_http.connection_string.replace(azurite_http.key, key)
    )
    with pytest.raises(StoreAuthError) as caught:
        open_store(f"az://{container}/set").get("k")
    assert key not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"


def test_a_missing_container_is_not_found(azurite_http, container):
    store = open_store("az://no-such-container/set", {"connection_string": azurite_http.connection_string})
    for use in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: store.size("k")):
        with pytest.raises(StoreNotFound, match="no-such-container"):
            use()


def test_the_certificate_authority_in_the_environment_is_trusted(azurite_https, secure_container, certificate):
    """In a new process: aiohttp reads SSL_CERT_FILE when it is imported."""
    program = (
        "import sys; from smalti.storage import open_store\n"
        "store = open_store(sys.argv[1], {'connection_string': sys.argv[2]})\n"
        "store.put('k', b'1'); print(store.get('k'))"
    )
    argv = [sys.executable, "-c", program, f"az://{secure_container}/set", azurite_https.connection_string]
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate.authority)}
    done = subprocess.run(argv, check=False, env=environment, capture_output=True, text=True, timeout=500)
    assert done.stdout == "b'1'\n", done.stderr
