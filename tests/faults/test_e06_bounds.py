"""E6, E7, E17: bounds on the requests for a shard, and on the time in which "not found" is retried."""

import time

import pytest

from smalti.errors import ShardNotFound, StoreError
from tests.faults.ways_of_reading import SHARD, assert_exact, assert_fails, open_set, serve
from tests.faultstore import Toxic

pytestmark = pytest.mark.torch

STORED = f"*{SHARD}*"


@pytest.mark.slow
def test_e6_a_shard_with_endless_errors_is_requested_five_times_in_an_attempt(faults, tmp_path):
    """The number of requests is bounded, however long the deadline is."""
    serve(faults).plant(Toxic("http", status=500, key=STORED))
    dataset = open_set(tmp_path, timeout=60, retry=1)
    with pytest.raises(StoreError, match=f"shard 3 .*{SHARD}.* attempts"):
        dataset[30]
    assert len(faults.log("GET", f"{SHARD}.mds")) == 5


@pytest.mark.parametrize("after", [None, 0, 100])
@pytest.mark.slow
def test_e7_one_attempt_of_the_cache_survives_a_reset_of_every_shard(faults, tmp_path, after):
    """The store itself retries, or continues where the reply broke off."""
    serve(faults)
    for number in range(7):
        faults.plant(Toxic("reset_peer", key=f"*shard.{number:05}*", after=after, count=1))
    assert_exact(open_set(tmp_path, retry=1), {})
    assert len([entry for entry in faults.log("GET") if "reset_peer" in entry.toxics]) == 7


@pytest.mark.slow
def test_e17_a_shard_that_is_not_found_for_five_seconds_is_only_late(faults, tmp_path):
    """As a mount may report an error of its store, and some stores an object that was just written."""
    serve(faults).plant(Toxic("http", key=STORED, status=404, lasting=5.0))
    assert_exact(open_set(tmp_path, timeout=60, retry=2), {})


@pytest.mark.slow
def test_e17_a_shard_that_stays_missing_is_an_error_well_before_the_deadline(faults, tmp_path):
    serve(faults).plant(Toxic("http", key=STORED, status=404))
    begin = time.monotonic()
    assert_fails(open_set(tmp_path, timeout=120, retry=2), {}, ShardNotFound, f"shard 3 .*{SHARD}.* gone")
    assert time.monotonic() - begin < 60
