"""Faults of object stores through the real client libraries: one clear error, in bounded time, without secrets."""

import json
import sys
import time
import urllib.request

import pytest

from smalti.errors import MissingDependency, StoreAuthError, StoreError, StoreExists, StoreNotFound, StoreTimeout
from smalti.storage import FsspecStore, open_store
from smalti.storage.errors import FaultKind, classify
from tests.storage.servers.planted import planted

KEYS = {"key": "AKIDTEST", "secret": "CANARYSECRETCANARY"}


def s3(endpoint, **options):
    defaults = {**KEYS, "endpoint_url": endpoint, "request_attempts": 2, "request_timeout": 20}
    return open_store("s3://bucket/set", defaults | options)


def test_s3_without_credentials_names_the_variables_to_set(s3_server, clean_environment):
    clean_environment.setenv("S3_ENDPOINT_URL", s3_server)
    store = open_store("s3://bucket/set")
    for use in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: list(store.list())):
        with pytest.raises(StoreAuthError, match=r"AWS_ACCESS_KEY_ID.*AWS_SECRET_ACCESS_KEY.*anon=True"):
            use()


def test_access_is_anonymous_only_on_request(s3_server, s3_bucket, clean_environment):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        clean_environment.delenv(name)
    with pytest.raises(StoreAuthError):
        open_store(f"s3://{s3_bucket}/x", {"endpoint_url": s3_server}).get("k")
    with pytest.raises(StoreNotFound):
        open_store(f"s3://{s3_bucket}/x", {"endpoint_url": s3_server, "anon": True}).get("k")


def test_credentials_set_after_a_failure_take_effect(s3_server, s3_bucket, clean_environment):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        clean_environment.delenv(name)
    clean_environment.setenv("S3_ENDPOINT_URL", s3_server)
    with pytest.raises(StoreAuthError):
        open_store(f"s3://{s3_bucket}").put("k", b"1")
    clean_environment.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    clean_environment.setenv("AWS_SECRET_ACCESS_KEY", "SECRETTESTSECRET")
    open_store(f"s3://{s3_bucket}").put("k", b"1")


def test_a_wrong_secret_is_refused_and_not_shown(s3_server, s3_bucket, clean_environment):
    request = urllib.request.Request(
        s3_server + "/moto-api/reset-auth", data=b"0", method="POST", headers={"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(request).read()
    try:
        store = open_store(f"s3://{s3_bucket}", {**KEYS, "endpoint_url": s3_server})
        for use in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: store.size("k")):
            with pytest.raises(StoreAuthError, match="refused") as caught:
                use()
            assert "CANARY" not in repr(caught.value) + str(caught.value) + json.dumps(caught.value.facts)
    finally:
        off = urllib.request.Request(
            s3_server + "/moto-api/reset-auth", data=b"inf", method="POST", headers={"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(off).read()


def test_a_missing_bucket_is_not_found(s3_server, s3_bucket):
    store = open_store("s3://no-such-bucket-here/x", {"endpoint_url": s3_server})
    for use in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: store.put_if_absent("k", b"1")):
        with pytest.raises(StoreNotFound, match="no-such-bucket-here"):
            use()


def test_a_failed_file_upload_leaves_no_object(s3_server, s3_bucket, tmp_path):
    store = open_store(f"s3://{s3_bucket}", {"endpoint_url": s3_server})
    with pytest.raises(StoreError):
        store.put_file("k", tmp_path / "absent")
    assert not store.exists("k")


@pytest.mark.parametrize("mode", [500, 503, 429, "drop", "cut"])
@pytest.mark.slow
def test_s3_faults_are_retried_a_few_times_and_then_raised(clean_environment, mode):
    with planted(mode) as server:
        server.put("set/k", b"0123456789")
        begin = time.monotonic()
        with pytest.raises(StoreError, match=r"s3://bucket/set/k"):
            s3(server.url).get_range("k", 0, 10)
        assert time.monotonic() - begin < 40
        assert 2 <= len(server.log()) <= 8, "the product of the store's and the library's attempts"


def test_a_hanging_s3_store_is_a_timeout(clean_environment):
    with planted("hang") as server:
        begin = time.monotonic()
        with pytest.raises(StoreTimeout, match="deadline"):
            s3(server.url, request_timeout=1.0).get("k")
        assert time.monotonic() - begin < 30, "the server is silent for a minute"


def test_a_read_succeeds_when_s3_recovers(clean_environment):
    with planted(503, times=2) as server:
        server.put("set/k", b"0123456789")
        assert s3(server.url, request_attempts=3).get_range("k", 0, 10) == b"0123456789"


def test_an_unreachable_s3_fails_early(clean_environment):
    begin = time.monotonic()
    with pytest.raises(StoreError, match="s3://bucket"):
        s3("http://127.0.0.1:9").get("k")
    assert time.monotonic() - begin < 40


def test_gcs_without_credentials_names_the_remedies(clean_environment):
    pytest.importorskip("gcsfs")
    with pytest.raises(StoreAuthError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        open_store("gs://bucket/set").get("k")
    with pytest.raises(StoreAuthError, match="does not exist"):
        open_store("gs://bucket/set", {"token": "/no/such/key.json"}).get("k")


@pytest.mark.slow
def test_gcs_faults_are_bounded(clean_environment):
    pytest.importorskip("gcsfs")
    for mode, expected in {503: StoreError, 403: StoreAuthError, 404: StoreNotFound, 412: StoreExists}.items():
        with planted(mode) as server:
            options = {"endpoint_url": server.url, "token": "anon", "request_attempts": 1, "request_timeout": 30}
            store = open_store("gs://bucket/set", options)
            begin = time.monotonic()
            with pytest.raises(expected):
                store.put_if_absent("k", b"1")
            assert time.monotonic() - begin < 60
            assert len(server.log()) <= 4, mode


def test_azure_is_never_anonymous_by_default(clean_environment):
    pytest.importorskip("adlfs")
    with pytest.raises(StoreAuthError, match="AZURE_STORAGE_CONNECTION_STRING"):
        open_store("abfs://container/set", {"request_attempts": 1}).get("k")


@pytest.mark.slow
def test_azure_faults_are_bounded_and_keep_the_account_key_secret(clean_environment):
    pytest.importorskip("adlfs")
    key = "Q0FOQVJZQ0FOQVJZQ0FOQVJZ"
    for mode, expected in {503: StoreError, 403: StoreAuthError, 404: StoreNotFound, 409: StoreError}.items():
        with planted(mode) as server:
            text = f"DefaultEndpointsProtocol=http;AccountName=acct;AccountKey={key};BlobEndpoint={server.url}/acct;"
            options = {"connection_string": text, "request_attempts": 1, "request_timeout": 30}
            begin = time.monotonic()
            with pytest.raises(expected) as caught:
                open_store("abfs://container/set", options).get("k")
            assert time.monotonic() - begin < 60
            assert key not in str(caught.value)
            assert not isinstance(caught.value, StoreTimeout), "the SDK's own pauses outlast the deadline"
            assert len(server.log()) == (2 if mode == 503 else 1), mode


def test_exception_classes_of_client_libraries_are_classified():
    class NoCredentialsError(Exception):
        pass

    class ReadTimeoutError(Exception):
        pass

    class ClientError(Exception):
        def __init__(self, code, status):
            self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}

    cases = {
        FaultKind.NO_CREDENTIALS: [
            NoCredentialsError(),
            ValueError("default auth: cannot configure default credentials, ..."),
        ],
        FaultKind.TIMEOUT: [ReadTimeoutError(), TimeoutError(), ClientError("RequestTimeout", 400)],
        FaultKind.EXISTS: [FileExistsError(), ClientError("PreconditionFailed", 412)],
        FaultKind.TRANSIENT: [
            ClientError("SlowDown", 503),
            ClientError("ConditionalRequestConflict", 409),
            ConnectionResetError(),
        ],
        FaultKind.REFUSED: [
            ClientError("ExpiredToken", 400),
            ClientError("AccessDenied", 403),
            ClientError("400", 400),
        ],
        FaultKind.MISSING: [ClientError("NoSuchKey", 404), FileNotFoundError()],
        FaultKind.PAST_END: [ClientError("InvalidRange", 416)],
        FaultKind.OTHER: [ValueError("what"), OSError("odd")],
    }
    for kind, errors in cases.items():
        for error in errors:
            assert classify(error) is kind, error
            wrapped = OSError(22, "translated")
            wrapped.__cause__ = error
            assert classify(wrapped) is kind, "classified by its cause"


def test_a_missing_extra_names_the_pip_command(monkeypatch):
    from smalti.storage.schemes import load_extra

    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingDependency, match=r"pip install 'smalti\[s3\]'"):
        load_extra("s3fs")


def test_options_are_passed_through_and_the_endpoint_travels_with_a_pickle(clean_environment):
    import pickle

    clean_environment.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:9")
    store = pickle.loads(
        pickle.dumps(open_store("s3://bucket/set", {**KEYS, "client_kwargs": {"region_name": "eu-x"}}))
    )
    clean_environment.delenv("S3_ENDPOINT_URL")
    assert isinstance(store, FsspecStore)
    filesystem = store._connection.get()
    assert filesystem.endpoint_url == "http://127.0.0.1:9"
    assert filesystem.client_kwargs["region_name"] == "eu-x"
    assert filesystem.config_kwargs["request_checksum_calculation"] == "when_required"
    assert filesystem.anon is False
    assert "CANARY" not in repr(store)
