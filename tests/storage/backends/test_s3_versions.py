"""A purge in a versioned bucket of S3: the contents that the bucket keeps are counted, and removed on request."""

import boto3
import pytest

from smalti.storage import LocalStore, open_store
from smalti.writer import PurgeOptions, delete
from tests.stores import MemoryStore
from tests.writer.user_rows import ids_of, ids_without_user, write_rows


@pytest.fixture
def client(s3_server, s3_bucket):
    found = boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1")
    found.put_bucket_versioning(Bucket=s3_bucket, VersioningConfiguration={"Status": "Enabled"})
    yield found
    found.close()


def contents_of(client, bucket):
    """Return all contents that the bucket holds, with old ones, by key and version."""
    page = client.list_object_versions(Bucket=bucket)
    assert not page["IsTruncated"]
    return {
        (each["Key"], each["VersionId"]): client.get_object(
            Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"]
        )["Body"].read()
        for each in page.get("Versions", ())
    }


def test_what_a_versioned_bucket_keeps_is_counted_and_removed_on_request(client, s3_server, s3_bucket):
    store = open_store(f"s3://{s3_bucket}/set", {"endpoint_url": s3_server})
    write_rows(store)
    client.put_object(Bucket=s3_bucket, Key="set/notes.txt", Body=b"row 33 of others")
    client.delete_object(Bucket=s3_bucket, Key="set/notes.txt")
    report = delete(store, [("user", "==", 5)], purge=PurgeOptions(cache=False))
    assert ids_of(store) == ids_without_user(5, range(40))
    kept = report.purge.bucket_versions
    removed = [each for each in report.purge.objects if each.num_bytes]
    assert not kept.removed
    assert kept.num_bytes >= sum(each.num_bytes for each in removed) > 0
    assert {key for (key, _), data in contents_of(client, s3_bucket).items() if b"row 33" in data} != {"set/notes.txt"}
    report = delete(store, [("user", "==", 5)], purge=PurgeOptions(cache=False, bucket_versions=True))
    assert report.purge.bucket_versions.removed
    holding = {key for (key, _), data in contents_of(client, s3_bucket).items() if b"row 33" in data}
    assert holding == {"set/notes.txt"}, "only what Smalti wrote is removed"
    assert ids_of(store) == ids_without_user(5, range(40))
    again = delete(store, [("user", "==", 5)], purge=PurgeOptions(cache=False, bucket_versions=True))
    assert again.purge.bucket_versions.num_versions == 0


def test_a_bucket_without_versions_keeps_nothing(s3_server, s3_bucket):
    store = open_store(f"s3://{s3_bucket}/set", {"endpoint_url": s3_server})
    store.put("a", b"1")
    store.put("a", b"2")
    assert list(store.old_versions()) == []


def test_stores_say_whether_they_keep_old_contents(tmp_path):
    assert MemoryStore().old_versions() is None, "not known"
    assert list(LocalStore(tmp_path).old_versions()) == []
