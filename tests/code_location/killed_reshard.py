"""A run of `flowers_reshard_job` that is killed right before it publishes; run as a program by test_incremental.

killed_reshard <instance's folder> <photos> <data> <version that it dies before>
"""

import os
import signal
import sys
import uuid
from pathlib import Path

import dagster as dg

from smalti.catalog.manifest import header_key
from smalti.storage import LocalStore
from tests.code_location.graph import Graph


def die_before(version: int) -> None:
    """SIGKILL in place of the put that makes this version."""
    real = LocalStore.put_if_absent

    def put_if_absent(self: LocalStore, key: str, data: bytes) -> None:
        if key == header_key(version):
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, key, data)

    LocalStore.put_if_absent = put_if_absent  # type: ignore[method-assign]


def main(home: str, photos: str, data: str, version: str) -> None:
    die_before(int(version))
    with dg.DagsterInstance.from_config(home) as instance:
        Graph(instance, Path(photos), Path(data)).run(run_id=str(uuid.uuid4()))


if __name__ == "__main__":
    main(*sys.argv[1:])
