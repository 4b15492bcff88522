"""Google's storage: no probes over gRPC, no accidental anonymous access, HMAC keys by the S3-compatible endpoint."""

import os
import subprocess
import sys

import pytest

from smalti.errors import StoreAuthError, StoreError, StoreNotFound
from smalti.storage import open_store


def test_buckets_are_not_probed_over_grpc(gcs_url, gcs_bucket):
    """gcsfs probes over gRPC by default: 30 s per call without an answer, and threads that do not survive a fork."""
    program = (
        "import sys, time, threading; from smalti.storage import open_store\n"
        "store = open_store(sys.argv[1], {'endpoint_url': sys.argv[2], 'token': 'anon'})\n"
        "begin = time.monotonic(); store.put('k', b'1'); store.get('k'); list(store.list())\n"
        "kind = type(store._connection.get())\n"
        "print([c.__name__ for c in kind.__mro__ if 'Extended' in c.__name__], time.monotonic() - begin < 30)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GCSFS_")}
    argv = [sys.executable, "-c", program, f"gs://{gcs_bucket}/set", gcs_url]
    done = subprocess.run(argv, check=False, env=environment, capture_output=True, text=True, timeout=500)
    assert done.stdout == "[] True\n", done.stderr


@pytest.mark.slow
def test_no_credentials_are_an_error_and_not_anonymous_access(gcs_url, gcs_bucket):
    with pytest.raises(StoreAuthError, match=r"GOOGLE_APPLICATION_CREDENTIALS.*GCS_KEY and GCS_SECRET"):
        open_store(f"gs://{gcs_bucket}/set", {"endpoint_url": gcs_url}).get("k")


def test_a_missing_bucket_is_not_found(gcs_url, gcs_bucket):
    store = open_store("gs://no-such-bucket/set", {"endpoint_url": gcs_url, "token": "anon"})
    for use in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: store.size("k")):
        with pytest.raises(StoreNotFound, match="no-such-bucket"):
            use()


def test_a_store_that_ignores_conditions_refuses_to_publish(gcs_url, gcs_bucket):
    """The emulator accepts every exclusive put: two writers would overwrite each other's version."""
    store = open_store(f"gs://{gcs_bucket}/set", {"endpoint_url": gcs_url, "token": "anon"})
    with pytest.raises(StoreError, match="ignores conditional puts"):
        store.check_exclusive_puts("_versions")
    assert list(store.list()) == []


def test_hmac_keys_use_the_s3_compatible_endpoint_of_google(clean_environment):
    clean_environment.setenv("GCS_KEY", "GOOG1EXAMPLE")
    clean_environment.setenv("GCS_SECRET", "canarycanary")
    filesystem = open_store("gs://bucket/set")._connection.get()
    assert filesystem.endpoint_url == "https://storage.googleapis.com"
    assert (filesystem.key, filesystem.client_kwargs["region_name"]) == ("GOOG1EXAMPLE", "auto")
    named = open_store("gs://bucket/set", {"token": "anon"})._connection.get()
    assert not hasattr(named, "endpoint_url") or named.endpoint_url is None, "an explicit token takes precedence"


def test_a_wrong_hmac_key_is_refused_and_not_shown(guarded_server, guarded_bucket, clean_environment):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        clean_environment.delenv(name)
    clean_environment.setenv("GCS_KEY", guarded_server.key)
    clean_environment.setenv("GCS_SECRET", "canarycanarycanary")
    store = open_store(f"gs://{guarded_bucket}/set", {"endpoint_url": guarded_server.http})
    with pytest.raises(StoreAuthError, match=r"refused.*GCS_KEY") as caught:
        store.get("k")
    assert "canary" not in f"{caught.value} {caught.value.__cause__!r}"
