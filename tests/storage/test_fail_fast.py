"""Without credentials a store raises within 3 s: the tests count attempts and add up timeouts and pauses."""

import asyncio
import os
import socket
import subprocess
import sys
import threading

import pytest

from smalti.errors import StoreAuthError, StoreError
from smalti.storage import open_store
from smalti.storage.backends.azure import AzureIdentityError, default_login
from smalti.storage.databricks.workspace import login_limits
from tests.storage.servers.web_server import WebServer

LIMIT = 3.0


class Silent:
    """A server that accepts and counts connections, and never answers."""

    def __enter__(self):
        self.count, self._connections = 0, []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.count += 1
            self._connections.append(connection)

    def __exit__(self, *exc):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._connections:
            connection.close()


# ---------------------------------------------------------------- gs://


class Unreachable:
    """The part of a `requests` session that google-auth uses, on a machine without a metadata service."""

    def __init__(self):
        self.timeouts = []

    def request(self, method, url, timeout=None, **options):
        import requests

        self.timeouts.append(timeout)
        raise requests.exceptions.ConnectTimeout(f"no server at {url}")

    def close(self):
        pass


def test_the_metadata_service_of_google_is_probed_once(clean_environment):
    """google-auth itself tries three times, for 3 s each, with pauses of 1 and 2 s."""
    from google.auth.compute_engine import _metadata

    from smalti.storage.backends.gcs import metadata_request

    session = Unreachable()
    assert _metadata.ping(metadata_request(session), retry_count=3) is False
    assert session.timeouts == [1], "to connect, and again to answer"


@pytest.mark.process
def test_gs_probes_once_even_if_google_auth_was_imported_before(clean_environment):
    """google-auth reads its variables with limits when it is imported, as by Databricks' SDK."""
    program = (
        "import google.auth.compute_engine._metadata\n"
        "from smalti.storage import open_store\n"
        "try:\n    open_store('gs://bucket/set').get('k')\n"
        "except Exception as error:\n    print(type(error).__name__)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NO_GCE_CHECK"}
    with Silent() as metadata:
        environment["GCE_METADATA_IP"] = metadata.address
        done = subprocess.run(
            [sys.executable, "-c", program], check=False, env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.stdout == "StoreAuthError\n", done.stderr
        assert metadata.count == 1


# ---------------------------------------------------------------- dbfs:/


class Attribute:
    """An attribute of the SDK's `Config`."""

    def __init__(self, name, env, auth=None):
        self.name, self.env, self.auth = name, env, auth


ATTRIBUTES = [Attribute("host", "DATABRICKS_HOST"), Attribute("token", "DATABRICKS_TOKEN", "pat"),
              Attribute("profile", "DATABRICKS_CONFIG_PROFILE")]  # fmt: skip


def test_a_host_is_not_waited_for_without_any_sign_of_a_login(clean_environment, tmp_path):
    clean_environment.setenv("DATABRICKS_HOST", "https://host")
    limits = login_limits(ATTRIBUTES, {"host": "https://host"})
    assert limits == {"http_timeout_seconds": 0.5, "retry_timeout_seconds": 1}
    # Connecting, the answer, and the SDK's pause after an error of 1 to 2 s, which no second attempt follows.
    assert 2 * limits["http_timeout_seconds"] + 2.0 <= LIMIT
    assert login_limits(ATTRIBUTES, {"token": "dapi"}) == {}
    assert login_limits(ATTRIBUTES, {"credentials_strategy": object()}) == {}
    for name in ("DATABRICKS_TOKEN", "DATABRICKS_CONFIG_PROFILE", "DATABRICKS_RUNTIME_VERSION"):
        clean_environment.setenv(name, "x")
        assert login_limits(ATTRIBUTES, {}) == {}, name
        clean_environment.delenv(name)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".databrickscfg").write_text("")
    assert login_limits(ATTRIBUTES, {}) == {}


def test_the_sdk_accepts_these_limits_unchanged(clean_environment):
    """The SDK converts floats to integers, and reads 0 as 300."""
    from databricks.sdk.core import Config

    limits = login_limits(Config.attributes(), {})
    with WebServer({}) as server:
        made = Config(host=server.url, token="dapi", **limits)
    assert (made.http_timeout_seconds, made.retry_timeout_seconds) == (0.5, 1)


def test_a_host_is_probed_once_before_the_error_about_a_missing_login(clean_environment):
    clean_environment.setenv("PATH", "")
    with WebServer({}) as server:
        with pytest.raises(StoreAuthError, match="DATABRICKS_TOKEN"):
            open_store("dbfs:/Volumes/c/s/v/set", {"host": server.url}).get("k")
        # An SDK older than 0.120 does not ask the host at all.
        assert server.log in ([("GET", "/.well-known/databricks-config")], [])


def test_after_the_login_requests_have_their_own_limits_again(files_api):
    store = open_store("dbfs:/Volumes/main/default/vol/x")
    store.put("k", b"1")
    config = store._connection.get()._volumes._workspace._clients.get().config
    assert (config.http_timeout_seconds, config.retry_timeout_seconds) == (30, 2)


# ---------------------------------------------------------------- hf://


def test_the_hub_is_asked_once_if_it_requires_a_login(clean_environment):
    with WebServer({}, token="hf_right") as server:
        with pytest.raises(StoreAuthError, match="HF_TOKEN"):
            open_store("hf://datasets/owner/name", {"endpoint": server.url}).get("k")
        assert len(server.log) == 1


@pytest.mark.parametrize(("code", "attempts"), [(socket.EAI_NONAME, 2), (socket.EAI_AGAIN, 3)])
def test_a_server_with_an_unknown_name_is_tried_twice(clean_environment, code, attempts):
    """Five attempts, as for transient faults, would take pauses of 3 to 4.5 s; one pause takes at most 0.3 s."""
    import aiohttp

    resolved = []

    class Names(aiohttp.abc.AbstractResolver):
        async def resolve(self, host, port=0, family=0):
            resolved.append(host)
            raise socket.gaierror(code, "no address")

        async def close(self):
            pass

    async def get_client(loop, **options):
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Names()))

    with pytest.raises(StoreError, match=r"huggingface\.co"):
        open_store("hf://datasets/owner/name", {"get_client": get_client, "request_attempts": 3}).get("k")
    assert resolved == ["huggingface.co"] * attempts


# ---------------------------------------------------------------- abfs://


def test_a_metadata_service_of_another_cloud_is_retried_within_two_seconds(clean_environment):
    """Google's and Amazon's machines answer 404 at the same address. The default pauses take 24 s."""
    from azure.core.pipeline.transport import AsyncHttpResponse, AsyncHttpTransport

    class NotFound(AsyncHttpResponse):
        def __init__(self, request):
            super().__init__(request, None)
            self.status_code, self.reason, self.headers, self.content_type = 404, "Not Found", {}, "text/plain"

        def body(self):
            return b"no such page"

        async def load_body(self):
            pass

    class Elsewhere(AsyncHttpTransport):
        def __init__(self):
            self.timeouts, self.pauses = [], []

        async def send(self, request, **options):
            self.timeouts.append(options.get("connection_timeout"))
            return NotFound(request)

        async def sleep(self, duration):
            self.pauses.append(duration)

        async def open(self):
            pass

        async def close(self):
            pass

        async def __aenter__(self):
            return self

        async def __aexit__(self, *exc):
            pass

    clean_environment.setenv("PATH", "")  # no `az`
    machine = Elsewhere()
    with pytest.raises(AzureIdentityError):
        asyncio.run(default_login({"transport": machine}).get_token("https://storage.azure.com/.default"))
    assert machine.timeouts[0] == 1, "the first request only tests whether the service exists"
    assert (len(machine.timeouts), machine.pauses) == (4, [1.6])


# ---------------------------------------------------------------- s3://, oci://


def test_the_metadata_service_of_amazon_is_waited_for_two_seconds(clean_environment):
    """One request for a token and one for a role: botocore's defaults, which aiobotocore shares."""
    import botocore.session

    session = botocore.session.Session()
    limits = [session.get_config_variable(f"metadata_service_{name}") for name in ("timeout", "num_attempts")]
    assert limits == [1, 1]
