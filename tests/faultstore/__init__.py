"""A store with faults that real SDKs talk to: an HTTP server on loopback that speaks the S3 subset which they need.

    with FaultStore(Toxic("http", status=503, code="SlowDown", probability=0.1), seed=7) as faults:
        write_set(f"s3://{faults.bucket}/set", ...)             # with the environment `faults.environment`
        faults.plant(Toxic("reset_peer", key="*.mds", after=4096, nth=2, count=1))
        ...
        assert [entry.status for entry in faults.log("GET", "shard.00003.mds")] == [503, 206]

It knows GET with ranges, HEAD, PUT, copies, DELETE (of many, too), ListObjectsV2 with prefix, delimiter and pages,
multipart uploads, ETag, If-Match and If-None-Match on reads and writes, user metadata, path style and virtual hosts
(`bucket.localhost`). It checks no signatures, and needs the standard library alone (its `open` needs s3fs).

`python -m tests.faultstore --latency 0.03 --bandwidth 200e6 --folder DIR` runs it as a program; it prints its
address, and moves a gigabyte a second or so where no toxic is in the way.
"""

from tests.faultstore.handle import FaultStore
from tests.faultstore.server import Logged
from tests.faultstore.toxics import KINDS, Toxic

__all__ = ["FaultStore", "KINDS", "Logged", "Toxic"]
