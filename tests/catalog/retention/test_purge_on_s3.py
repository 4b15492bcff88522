"""A deletion with a purge through s3fs, on a store that refuses requests, or loses the replies of successful ones."""

import boto3
import pytest

from smalti.catalog import verify
from smalti.catalog.retention import markers
from smalti.errors import CommitConflict, CommitUnknown, StoreError
from smalti.writer import PurgeOptions, delete
from tests.faultstore import FaultStore, Toxic
from tests.writer.user_rows import ids_of, ids_without_user, write_rows


@pytest.mark.slow
def test_faults_of_the_store_delay_a_purge_and_damage_nothing(monkeypatch):
    with FaultStore(seed=5) as faults:
        for name, value in faults.environment.items():
            monkeypatch.setenv(name, value)
        store = faults.open("set", request_attempts=1, request_timeout=20)
        write_rows(store)
        write_rows(store, 10, first=40, mode="append")
        markers.begin(store, "dead")
        client = boto3.client("s3", endpoint_url=faults.url, region_name="us-east-1")
        client.create_multipart_upload(Bucket=faults.bucket, Key="set/dead/00000/shard.00009.mds")
        faults.plant(Toxic("http", status=503, code="SlowDown", probability=0.03))
        faults.plant(Toxic("lost_ack", method="DELETE", probability=0.1))
        options = PurgeOptions(unsafe_ttl=True, cache=False)
        for attempt in range(100):
            try:
                delete(store, [("user", "==", 5)], purge=options)
            except (StoreError, CommitUnknown, CommitConflict):
                assert attempt < 99, "it never ended"
                continue
            break
        faults.heal()
        report = delete(store, [("user", "==", 5)], purge=options)
        assert report.ok
        assert ids_of(store) == ids_without_user(5, range(50))
        assert verify(store).ok
        assert [info.key for info in store.list() if b"row 33" in store.get(info.key)] == []
        assert client.list_multipart_uploads(Bucket=faults.bucket).get("Uploads", []) == []
