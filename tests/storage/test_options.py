"""Storage options are checked when a store is opened: their names, their numbers, and the URLs of servers."""

import math

import pytest

from smalti.errors import StoreError
from smalti.storage import open_store
from smalti.storage.schemes import SCHEMES

ADDRESSES = {
    "s3": "s3://bucket/set",
    "oci": "oci://bucket@space/set",
    "gs": "gs://bucket/set",
    "abfs": "abfs://container/set",
    "azure": "azure://account.blob.core.windows.net/container/set",
    "dbfs": "dbfs:/Volumes/c/s/v/set",
    "sftp": "sftp://user@host/set",
    "hf": "hf://datasets/owner/name/set",
    "https": "https://host/set",
    "http": "http://host/set",
    "memory": "memory://set",
}
NEEDED = {"oci": {"region": "eu-frankfurt-1"}}
"""Options without which an address of the scheme cannot be opened."""
MISSPELT = {"hf": ("tokn", "token"), "dbfs": ("hst", "host"), "sftp": ("usrname", "username"), "memory": ("", ""),
            "https": ("hedaers", "headers"), "http": ("hedaers", "headers"), "abfs": ("acount_key", "account_key"),
            "azure": ("acount_name", "account_name")}  # fmt: skip
OF_LIBRARIES = {
    "s3": "max_concurrency", "oci": "version_aware", "gs": "consistency", "abfs": "exclude_cli_credential",
    "azure": "location_mode", "dbfs": "azure_workspace_resource_id", "sftp": "compression_algs", "hf": "proxy_auth",
    "https": "cookies", "http": "proxy_headers",
}  # fmt: skip
"""Options that only a look at the signature of the client library shows."""
URLS = {"s3": ("proxy", "endpoint_url", "sts_endpoint_url"), "oci": ("proxy", "endpoint_url"),
        "gs": ("proxy", "endpoint_url"), "abfs": ("proxy",), "hf": ("endpoint",)}  # fmt: skip
NO_URLS = [
    "proxy:3128", "http://", "http://host:port", "http://host:99999", "http://host:0", "http://[::1", "ftp://host:21",
    "http://user:p ass@host:3128", "http://user:p#ss@host:3128", "http://ho\nst", 3128, True,
]  # fmt: skip


def opened(name, **options):
    return open_store(ADDRESSES[name], {**NEEDED.get(name, {}), **options})


def refusal(name, **options):
    with pytest.raises(StoreError) as caught:
        opened(name, **options)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _no_login(clean_environment):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("name", [scheme.name for scheme in SCHEMES])
def test_a_misspelt_option_is_refused_by_every_scheme_and_its_name_is_proposed(name):
    wrong, right = MISSPELT.get(name, ("tokn", "token"))
    if right:
        said = refusal(name, **{wrong: "x"})
        assert f"has no storage option `{wrong}`; did you mean" in said
        assert f"`{right}`" in said
        opened(name, **{right: "x"})
    assert "did you mean `request_timeout`" in refusal(name, request_timout=3)
    assert "did you mean `request_attempts`" in refusal(name, request_atempts=3)
    assert "has no storage option `zzz`; docs/storage.md says which it takes" in refusal(name, zzz=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_an_option_of_the_client_library_alone_is_accepted(name):
    opened(name, **{OF_LIBRARIES[name]: None})


@pytest.mark.parametrize("name", URLS)
def test_a_malformed_url_of_a_server_or_proxy_is_refused_without_repeating_it(name):
    role = {"role_arn": "arn"} if name == "s3" else {}
    for option in URLS[name]:
        for url in NO_URLS:
            said = refusal(name, **{**role, option: url})
            assert f"the storage option `{option}` is not the " in said
            assert "expected http://host:port" in said
            assert "p ass" not in said
            assert "p#ss" not in said
        for url in ("http://host:3128", "https://host", "http://user:p%23ss@host:3128", "http://[::1]:9000/"):
            opened(name, **{**role, option: url})


def test_urls_in_the_arguments_of_the_client_are_checked_too():
    assert "`client_kwargs` is not the URL of a server" in refusal("s3", client_kwargs={"endpoint_url": "host:9000"})
    proxies = {"proxies": {"https": "proxy:3128"}}
    assert "`config_kwargs.proxies` is not the address of an HTTP proxy" in refusal("s3", config_kwargs=proxies)


@pytest.mark.parametrize("number", ["3", None, math.nan, math.inf, 0, -1, 10**30])
def test_limits_of_operations_are_numbers_in_range(number):
    assert f"`request_attempts` is {number!r}, expected a whole number from 1 to 1,000" in (
        refusal("memory", request_attempts=number)
    )
    assert f"`request_timeout` is {number!r}, expected seconds above 0" in refusal("memory", request_timeout=number)


def test_the_region_of_oracle_is_an_option_of_its_own(monkeypatch):
    for name in ("OCI_REGION", "OCI_CLI_REGION"):
        monkeypatch.delenv(name, raising=False)
    store = open_store("oci://bucket@space/set", {"region": "eu-frankfurt-1"})
    assert store.endpoint() == "https://space.compat.objectstorage.eu-frankfurt-1.oraclecloud.com"


def test_every_scheme_is_in_this_table():
    assert set(ADDRESSES) == {scheme.name for scheme in SCHEMES}
