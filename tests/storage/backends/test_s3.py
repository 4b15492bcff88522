"""S3: the rights that a user needs, requester pays, canned ACLs, and no accidental anonymous access."""

import json
import secrets

import pytest

from smalti.errors import StoreAuthError, StoreError, StoreNotFound
from smalti.storage import UnfinishedUpload, open_store
from tests.storage.servers.s3_server import LEAST_RIGHTS, policy_for
from tests.storage.servers.web_server import WebServer

KEYS = {"key": "AKIDTEST", "secret": "CANARYSECRETCANARY"}
READ_ONLY = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::BUCKET/*"},
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::BUCKET"},
    ],
}


@pytest.fixture
def user(guarded_server, guarded_bucket):
    """A function `user(rights)` that returns the store of a new user with these rights on the bucket."""

    def make(rights):
        name = f"u-{secrets.token_hex(4)}"
        with guarded_server.unguarded():
            iam = guarded_server.admin("iam")
            iam.create_user(UserName=name)
            made = iam.create_access_key(UserName=name)["AccessKey"]
            iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy_for(guarded_bucket, rights))
        options = {"key": made["AccessKeyId"], "secret": made["SecretAccessKey"], "endpoint_url": guarded_server.http}
        return open_store(f"s3://{guarded_bucket}/set", options)

    return make


def use_everything(store, tmp_path):
    (tmp_path / "f").write_bytes(b"from a file")
    store.put("a", b"123")
    store.put_file("b", tmp_path / "f")
    store.put_if_absent("c", b"1")
    assert store.get("a") == b"123"
    assert store.get_range("b", 5, 6) == b"a"
    assert [info.key for info in store.list()] == ["a", "b", "c"]
    assert not store.exists("d")
    store.delete("a")
    store.check_exclusive_puts("probe")


def test_the_documented_rights_are_enough_to_write(user, tmp_path):
    use_everything(user(LEAST_RIGHTS), tmp_path)


def test_the_documented_rights_are_enough_to_read_and_no_more(user):
    writer, reader = user(LEAST_RIGHTS), user(READ_ONLY)
    writer.put("a", b"123")
    assert reader.get("a") == b"123"
    assert reader.get_range("a", 1, 2) == b"2"
    assert [info.key for info in reader.list()] == ["a"]
    assert not reader.exists("b")
    for write in (lambda: reader.put("a", b"2"), lambda: reader.put_if_absent("b", b"2"), lambda: reader.delete("a")):
        with pytest.raises(StoreAuthError, match="refused"):
            write()
    assert writer.get("a") == b"123"


def test_the_docs_list_these_rights():
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs" / "storage.md").read_text()
    shown = [json.loads(block.split("```")[0]) for block in page.split("```json\n")[1:]]
    assert LEAST_RIGHTS in shown
    assert READ_ONLY in shown


def test_a_bucket_of_another_user_is_refused(guarded_server, guarded_bucket):
    with guarded_server.unguarded():
        guarded_server.admin("s3").create_bucket(Bucket="closed-bucket")
    store = open_store("s3://closed-bucket/set", {"endpoint_url": guarded_server.http})
    for use in (lambda: store.get("k"), lambda: store.put("k", b"1"), lambda: list(store.list())):
        with pytest.raises(StoreAuthError, match="refused"):
            use()


def test_a_server_whose_certificate_is_not_trusted_is_refused_with_the_variable_to_set(guarded_server, guarded_bucket):
    store = open_store(f"s3://{guarded_bucket}/set", {"endpoint_url": guarded_server.https})
    with pytest.raises(StoreError, match=r"not trusted.*AWS_CA_BUNDLE"):
        store.get("k")


@pytest.mark.parametrize(("variable", "expected"), [("other, bucket", "requester"), ("bucket-too", None), ("", None)])
def test_requester_pays_is_on_for_buckets_in_the_environment(clean_environment, variable, expected):
    clean_environment.setenv("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", variable)
    with WebServer({"/bucket/set/k": b"1"}) as server:
        assert open_store("s3://bucket/set", {**KEYS, "endpoint_url": server.url}).get("k") == b"1"
        assert server.headers[-1].get("x-amz-request-payer") == expected


@pytest.mark.parametrize("acl", ["bucket-owner-full-control", None])
def test_written_objects_have_the_acl_in_the_environment(clean_environment, acl):
    if acl:
        clean_environment.setenv("S3_CANNED_ACL", acl)
    with WebServer({}) as server:
        store = open_store("s3://bucket/set", {**KEYS, "endpoint_url": server.url})
        store.put("k", b"1")
        assert server.headers[-1].get("x-amz-acl") == acl
        store.put_if_absent("v", b"1")
        assert server.headers[-1].get("x-amz-acl") == acl
        assert store.get("k") == b"1", "an option for writing does not hinder reading"


def test_no_request_is_anonymous_without_the_option(clean_environment):
    clean_environment.setenv("AWS_CONFIG_FILE", "/none")
    with WebServer({"/bucket/set/k": b"1"}) as server:
        with pytest.raises(StoreAuthError, match="AWS_ACCESS_KEY_ID"):
            open_store("s3://bucket/set", {"endpoint_url": server.url}).get("k")
        assert server.log == [], "no request was sent"
        assert open_store("s3://bucket/set", {"endpoint_url": server.url, "anon": True}).get("k") == b"1"
        assert "authorization" not in server.headers[-1]


def test_the_endpoint_of_oracle_follows_from_namespace_and_region(clean_environment, tmp_path):
    def endpoint(**options):
        return open_store("oci://bucket@space/set", {**KEYS, **options})._connection.get().endpoint_url

    with pytest.raises(StoreError, match="OCI_REGION"):
        open_store("oci://bucket@space/set")
    clean_environment.setenv("OCI_REGION", "eu-frankfurt-1")
    assert endpoint() == "https://space.compat.objectstorage.eu-frankfurt-1.oraclecloud.com"
    clean_environment.delenv("OCI_REGION")
    (tmp_path / "config").write_text("[DEFAULT]\nregion=us-ashburn-1\n")
    clean_environment.setenv("OCI_CONFIG_FILE", str(tmp_path / "config"))
    assert endpoint() == "https://space.compat.objectstorage.us-ashburn-1.oraclecloud.com"
    clean_environment.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "oraclecloud" in endpoint(), "S3's endpoint is another store's"
    with pytest.raises(StoreError, match="oci://bucket@namespace"):
        open_store("oci://bucket/set")


def test_a_bucket_that_does_not_exist_is_found_missing_before_anything_is_written(s3_server, s3_bucket):
    options = {"endpoint_url": s3_server}
    open_store(f"s3://{s3_bucket}/no/folder/yet", options).check_bucket()
    with pytest.raises(StoreNotFound, match=r"cannot use s3://no-such-bucket/x: there is no bucket"):
        open_store("s3://no-such-bucket/x", options).check_bucket()


def test_a_bucket_that_may_not_be_looked_up_is_an_authentication_error(user):
    store = user(LEAST_RIGHTS)
    store.put("a", b"1")
    with pytest.raises(StoreAuthError, match="cannot look up the bucket"):
        store.check_bucket()


def test_unfinished_uploads_are_listed_and_aborted_only_below_the_folder(s3_server, s3_bucket):
    import boto3

    client = boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1")
    for key in ("set/w/1/shard.00000.mds", "set/w/2/shard.00000.mds", "settings/x"):
        client.create_multipart_upload(Bucket=s3_bucket, Key=key)
    store = open_store(f"s3://{s3_bucket}/set", {"endpoint_url": s3_server})
    store.put("w/3/shard.00000.mds", b"whole")
    first, second = store.unfinished_uploads()
    assert {first.key, second.key} == {"w/1/shard.00000.mds", "w/2/shard.00000.mds"}
    assert first.begun == 1289422113.0, "moto says 2010-11-10 20:48:33 of every upload"
    assert [each.key for each in store.unfinished_uploads("w/2")] == ["w/2/shard.00000.mds"]
    for _ in range(2):  # the second time is a no-op
        store.abort_upload(first)
    assert list(store.unfinished_uploads()) == [second]
    left = client.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]
    assert sorted(each["Key"] for each in left) == sorted([f"set/{second.key}", "settings/x"])
    assert [info.key for info in store.list()] == ["w/3/shard.00000.mds"]


def test_pages_of_unfinished_uploads_are_read_to_the_last(s3_server, s3_bucket):
    """The server here has no pages, so the test feeds them to the file system."""
    import asyncio
    from datetime import datetime, timezone

    from smalti.storage.schemes import make_filesystem

    filesystem = make_filesystem("s3", {"endpoint_url": s3_server, "asynchronous": True})
    begun = datetime(2026, 1, 1, tzinfo=timezone.utc)
    pages = {
        (): {"Uploads": [{"Key": "set/a", "UploadId": "1", "Initiated": begun}], "IsTruncated": True,
             "NextKeyMarker": "set/a", "NextUploadIdMarker": "1"},
        ("set/a", "1"): {"Uploads": [{"Key": "set/b", "UploadId": "2", "Initiated": begun}], "IsTruncated": False},
    }  # fmt: skip
    requests = []

    async def answer(method, *, Bucket, Prefix, **after):  # noqa: N803 -- botocore's names
        requests.append((method, Bucket, Prefix))
        return pages[tuple(after[name] for name in ("KeyMarker", "UploadIdMarker") if name in after)]

    filesystem._call_s3 = answer
    found = asyncio.run(filesystem._unfinished_uploads("bucket/set"))
    assert found == [
        UnfinishedUpload("bucket/set/a", "1", begun.timestamp()),
        UnfinishedUpload("bucket/set/b", "2", begun.timestamp()),
    ]
    assert requests == [("list_multipart_uploads", "bucket", "set/")] * 2
