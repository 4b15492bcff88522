"""A conversion from a store to a store that refuses requests and loses replies, by processes."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti import convert, verify
from smalti.errors import CommitUnknown, StoreError
from tests.conversion.rows import ids_of
from tests.faultstore import FaultStore, Toxic


@pytest.mark.nightly
@pytest.mark.process
def test_every_row_arrives_once_through_a_store_with_faults(monkeypatch):
    with FaultStore(seed=5) as faults:
        for name, value in faults.environment.items():
            monkeypatch.setenv(name, value)
        store = faults.open("", request_attempts=6, request_timeout=60)
        for number in range(3):
            file = io.BytesIO()
            pq.write_table(pa.table({"id": range(100 * number, 100 * number + 100)}), file, row_group_size=25)
            store.put(f"rows/{number}.parquet", file.getvalue())
        faults.plant(Toxic("http", status=503, code="SlowDown", probability=0.05))
        faults.plant(Toxic("lost_ack", method="PUT", probability=0.05))
        faults.plant(Toxic("truncate", method="GET", probability=0.05))
        options = {"part_bytes": 1, "size_limit": 300}
        for attempt in range(20):
            try:
                convert(store.child("rows"), store.child("set"), processes=2, format="parquet", **options)
            except (StoreError, CommitUnknown):  # noqa: PERF203
                assert attempt < 19, "it never ended"
            else:
                break
        faults.heal()
        assert ids_of(store.child("set")) == list(range(300))
        assert verify(store.child("set")).ok
