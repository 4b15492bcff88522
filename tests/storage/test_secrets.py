"""Secrets are never shown: not in messages, causes, arguments, representations, logs, or errors from workers."""

import json
import logging
import pickle
import traceback

import pytest

from smalti.diagnosis.findings import one_line
from smalti.errors import StoreError
from smalti.storage import open_store
from tests.storage.servers.echo_server import EchoServer

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")

CANARY = "Q0FOQVJZY2FuYXJ5Q0FOQVJZ"  # valid base64, as Azure's keys must be
FORMS = (CANARY, "CANARYcanaryCANARY", "Q0FOQVJZ", "canary-in-a-login")
AZURE = {
    "key": "AccountName=acct;AccountKey={canary};BlobEndpoint={url}/acct;",
    "SAS": "BlobEndpoint={url}/acct;SharedAccessSignature=sv=2024-11-04&sig={canary}&se=2099",
}
CREDENTIALS = {
    "s3": ("s3://bucket/set", {"key": "AKIDTEST", "secret": CANARY, "token": f"session{CANARY}"}),
    "oci": ("oci://bucket@space/set", {"key": "AKIDTEST", "secret": CANARY}),
    "gs, HMAC": ("gs://bucket/set", {"key": "GOOGTEST", "secret": CANARY}),
    "gs": ("gs://bucket/set", {"token": "an access token"}),
    "abfs, key": ("abfs://container/set", {"connection_string": AZURE["key"]}),
    "abfs, SAS": ("abfs://container/set", {"connection_string": AZURE["SAS"]}),
    "dbfs": ("dbfs:/Volumes/c/s/v/set", {"token": f"dapi{CANARY}"}),
    "hf": ("hf://datasets/owner/name/set", {"token": f"hf_{CANARY}"}),
    "http": ("{url}/set", {"headers": {"Authorization": f"Bearer {CANARY}"}}),
    "http, basic": ("{url}/set", {"headers": {"Authorization": f"Basic {CANARY}"}}),
    "http, own header": ("{url}/set", {"headers": {"X-Api-Key": CANARY, "Cookie": f"session={CANARY}"}}),
}  # fmt: skip
ENDPOINTS = {"s3": "endpoint_url", "oci": "endpoint_url", "gs": "endpoint_url", "dbfs": "host", "hf": "endpoint"}


def store_at(kind, url, **more):
    address, options = CREDENTIALS[kind]
    options = {
        name: value.replace("{url}", url).replace("{canary}", CANARY) if isinstance(value, str) else value
        for name, value in options.items()
    }
    if name := ENDPOINTS.get(kind.partition(",")[0]):
        options[name] = url
    if kind == "gs":
        from google.oauth2.credentials import Credentials

        options["token"] = Credentials(token=f"ya29.{CANARY}")
    return open_store(address.replace("{url}", url), {**options, "request_attempts": 1, **more})


def everything_shown(error):
    """Return everything that a program could print, log or send of an error and its causes."""
    shown, pending, seen = [], [error], set()
    while pending:
        link = pending.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        shown += [str(link), repr(link), repr(link.args), repr(vars(link))]
        pending += [link.__cause__, link.__context__]
    shown += ["".join(traceback.format_exception(error)), json.dumps(error.facts, default=repr)]
    shown += [repr(pickle.dumps(error))]
    return "\n".join(shown)


def assert_hidden(text):
    assert [form for form in FORMS if form in text] == [], text


STATUSES = (401, 403, 404, 400, 500, "hang")
ECHOES = [
    pytest.param(status, kind, marks=() if (number + place) % 3 == 0 else pytest.mark.nightly)
    for number, status in enumerate(STATUSES)
    for place, kind in enumerate(CREDENTIALS)
]
"""Of each kind of login, every third status in the default run: both are there several times."""


@pytest.mark.parametrize(("status", "kind"), ECHOES)
@pytest.mark.slow
def test_a_server_that_echoes_requests_does_not_reveal_their_secrets(clean_environment, caplog, kind, status):
    more = {"request_timeout": 0.7} if status == "hang" else {"request_timeout": 30}
    caplog.set_level(logging.INFO)
    if (status, kind) == ("hang", "dbfs"):
        more["http_timeout_seconds"] = 1  # the SDK's own limit
    with EchoServer(status) as server:
        store = store_at(kind, server.url, **more)
        assert_hidden(f"{store!r} {store} {store.url}")
        with pytest.raises(StoreError) as caught:
            store.get("k")
        assert_hidden(everything_shown(caught.value))
        assert server.seen or status == "hang", "the server was asked"
    assert_hidden(caplog.text)


def test_this_test_detects_a_secret(clean_environment):
    """The logins do reach the server, and a cause that contains one is detected."""
    for kind in ("gs", "dbfs", "hf", "http", "http, own header"):
        with EchoServer(403) as server:
            with pytest.raises(StoreError):
                store_at(kind, server.url).get("k")
            assert any(CANARY in request for request in server.seen), kind
    error = StoreError("plain")
    error.__context__ = ValueError(f"token {CANARY}")
    with pytest.raises(AssertionError):
        assert_hidden(everything_shown(error))


def test_secrets_of_the_environment_are_hidden_too(clean_environment):
    """Secrets that the libraries read from the environment themselves."""
    clean_environment.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    clean_environment.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    clean_environment.setenv("AWS_SESSION_TOKEN", f"session{CANARY}")
    clean_environment.setenv("DATABRICKS_TOKEN", f"dapi{CANARY}")
    clean_environment.setenv("HF_TOKEN", f"hf_{CANARY}")
    with EchoServer(403) as server:
        clean_environment.setenv("S3_ENDPOINT_URL", server.url)
        clean_environment.setenv("DATABRICKS_HOST", server.url)
        clean_environment.setenv("HF_ENDPOINT", server.url)
        for address in ("s3://bucket/set", "dbfs:/Volumes/c/s/v/set", "hf://datasets/owner/name"):
            with pytest.raises(StoreError) as caught:
                open_store(address).get("k")
            assert_hidden(everything_shown(caught.value))
        assert sum(CANARY in request for request in server.seen) >= 3


PROXIES = [
    f"http://user:{CANARY}@127.0.0.1:3128",
    f"user:{CANARY}@127.0.0.1:3128",
    f"http://user:{CANARY[:10]}%{ord(CANARY[10]):x}{CANARY[11:]}@127.0.0.1:3128",
    f"http://{CANARY}@127.0.0.1:3128",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CREDENTIALS)
def test_the_login_of_a_proxy_in_the_environment_is_hidden(clean_environment, caplog, kind):
    caplog.set_level(logging.INFO)
    with EchoServer(407) as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            clean_environment.setenv(name, server.url.replace("http://", f"http://user:{CANARY}@"))
        for name in ("no_proxy", "NO_PROXY"):
            clean_environment.delenv(name, raising=False)
        with pytest.raises(StoreError) as caught:
            store_at(kind, "http://127.0.0.1:9", request_timeout=30).get("k")
        assert_hidden(everything_shown(caught.value))
    assert_hidden(caplog.text)


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
def test_an_error_that_shows_the_login_of_a_proxy_is_masked(clean_environment, name, proxy):
    clean_environment.setenv(name, proxy)
    assert_hidden(one_line(ValueError(f"the proxy {proxy} refused the login with {CANARY}")))


@pytest.mark.parametrize(
    "address",
    [
        f"s3://AKID:{CANARY}@bucket/set",
        f"https://user:{CANARY}@host/set",
        f"https://host/set?token={CANARY}",
        f"sftp://user:{CANARY}@host/set",
        f"abfs://c@a.dfs.core.windows.net/x?sig={CANARY}",
    ],
)
def test_a_secret_in_an_address_is_refused_or_part_of_a_name_and_never_shown(clean_environment, address):
    try:
        store = open_store(address)
    except StoreError as error:
        assert_hidden(everything_shown(error))
    else:
        pytest.fail(f"{store.url} was opened")
