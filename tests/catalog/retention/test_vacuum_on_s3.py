"""A vacuum through s3fs, on a store that refuses requests, or loses the replies of successful ones."""

import time

import boto3
import pytest

from smalti.catalog import load_manifest, publish, verify
from smalti.catalog.retention import markers
from smalti.catalog.retention.vacuum import vacuum
from smalti.errors import CommitUnknown, StoreError, VersionNotFound
from tests.faultstore import FaultStore, Toxic


@pytest.mark.slow
def test_faults_of_the_store_delay_a_vacuum_and_damage_nothing(make_draft, monkeypatch):
    with FaultStore(seed=3) as faults:
        for name, value in faults.environment.items():
            monkeypatch.setenv(name, value)
        store = faults.open("set", request_attempts=1, request_timeout=20)
        publish(store, make_draft(store, 20, write_id="aaaa"))
        publish(store, make_draft(store, 30, write_id="bbbb"), mode="overwrite")
        markers.begin(store, "dead")
        make_draft(store, 20, write_id="dead")
        client = boto3.client("s3", endpoint_url=faults.url, region_name="us-east-1")
        client.create_multipart_upload(Bucket=faults.bucket, Key="set/dead/00000/shard.00009.mds")
        time.sleep(3.1)  # the store reports times to the second
        faults.plant(Toxic("http", status=503, code="SlowDown", probability=0.1))
        faults.plant(Toxic("lost_ack", method="DELETE", probability=0.2))
        for attempt in range(100):
            try:
                report = vacuum(store, older_than=1.0, unsafe_ttl=True, dry_run=False)
            except (StoreError, CommitUnknown):
                assert attempt < 99, "it never ended"
                continue
            if not report.removed and report.uploads == ():
                break
        faults.heal()
        left = {info.key.split("/")[0] for info in store.list() if "/shard." in info.key}
        assert left == {"bbbb"}
        assert verify(store).ok
        assert load_manifest(store).rows == 30
        assert client.list_multipart_uploads(Bucket=faults.bucket).get("Uploads", []) == []
        with pytest.raises(VersionNotFound, match="removed by a vacuum"):
            load_manifest(store, version=1)
