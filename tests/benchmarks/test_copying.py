"""The comparison of copies, on a small set."""

import pytest

from benchmarks.copying import measure


@pytest.mark.nightly
def test_every_pair_of_stores_is_measured():
    found = measure(megabytes=4, rounds=1)
    assert [name for name, _, _ in found] == ["disk to disk", "disk to S3", "S3 to disk", "S3 to S3"]
    assert all(plain > 0 and verified > 0 for _, plain, verified in found)
