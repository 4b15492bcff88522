"""E5 to E8, E11, E12, E17: replies that fail, end early, never arrive, or are wrong."""

import pytest

from smalti.errors import ShardNotFound, StoreError, StoreTimeout
from tests.combinations import nightly
from tests.faults.ways_of_reading import (
    ALONE,
    ALONE_AND_PROCESSES,
    ALONE_AND_THREADS,
    SHARD,
    WAYS,
    assert_every_consumer_fails,
    assert_exact,
    assert_fails,
    assert_resumes,
    crossed,
    key_of,
    open_set,
    serve,
    written,
)
from tests.faultstore import FaultStore, Toxic

pytestmark = pytest.mark.torch

STORED = f"*{SHARD}*"


@pytest.mark.parametrize("way", [*ALONE_AND_PROCESSES, *WAYS[3:]])
def test_e5_a_missing_shard_is_an_error_on_every_consumer_and_never_a_short_epoch(faults, tmp_path, way):
    """MosaicML Streaming ends the epoch early with one worker, and hangs with two."""
    key = "set/" + key_of(written(), 3)
    serve(faults)
    data = faults.get(key)
    faults.delete(key)
    dataset = open_set(tmp_path, retry=1)
    loader, taken = assert_fails(dataset, way, ShardNotFound, f"shard 3 .*{SHARD}.* gone")
    assert_every_consumer_fails(dataset, ShardNotFound, 30)
    faults.put(key, data)
    assert_resumes(loader, taken)


@pytest.mark.parametrize(("way", "status"), crossed(ALONE, [500, 503, 429]))
def test_e6_a_burst_of_errors_is_retried_until_it_ends(faults, tmp_path, way, status):
    serve(faults).plant(Toxic("http", status=status, count=4))
    dataset = open_set(tmp_path)
    assert_exact(dataset, way)
    assert len([entry for entry in faults.log() if entry.toxics]) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "status", "retry"), [*crossed(ALONE_AND_PROCESSES, [(500, 1)]), *nightly(crossed(ALONE[:1], [(503, 3)]))]
)
def test_e6_a_shard_with_endless_errors_is_an_error_on_every_consumer(faults, tmp_path, way, status, retry):
    serve(faults).plant(Toxic("http", status=status, key=STORED))
    dataset = open_set(tmp_path, retry=retry)
    loader, taken = assert_fails(dataset, way, StoreError, f"shard 3 .*{SHARD}")
    assert len(faults.log("GET", f"{SHARD}.mds")) <= 60, "bounded, although two layers retry"
    faults.heal()
    assert_resumes(loader, taken)


@pytest.mark.parametrize(("way", "after"), crossed(ALONE, [100, None, 0]))
def test_e7_reset_connections_are_made_again(faults, tmp_path, way, after):
    serve(faults)
    for number in range(7):
        faults.plant(Toxic("reset_peer", key=f"*shard.{number:05}*", after=after, count=2))
    assert_exact(open_set(tmp_path), way)


@pytest.mark.slow
@pytest.mark.parametrize("way", ALONE)
def test_e7_a_shard_whose_connections_are_all_reset_is_an_error(faults, tmp_path, way):
    serve(faults).plant(Toxic("reset_peer", key=STORED, after=0))
    dataset = open_set(tmp_path, retry=1)
    loader, taken = assert_fails(dataset, way, StoreError, f"shard 3 .*{SHARD}")
    faults.heal()
    assert_resumes(loader, taken)


@pytest.mark.slow
@pytest.mark.parametrize("way", ALONE)
def test_e8_a_stalled_stream_ends_in_time_for_a_second_attempt(faults, tmp_path, way):
    """Two of twenty seconds are lost; a busy machine needs some of the others for the attempt that succeeds."""
    serve(faults).plant(Toxic("stall", key=STORED, seconds=60, count=1))
    assert_exact(open_set(tmp_path, timeout=20, retry=10, store={"request_timeout": 60}), way)


@pytest.mark.parametrize("way", ALONE_AND_THREADS)
def test_e8_a_stream_that_always_stalls_is_a_timeout_within_the_deadline(faults, tmp_path, way):
    """Every shard stalls: on a busy machine another one could fail before shard 3 within a second."""
    serve(faults).plant(Toxic("stall", key="*shard.*", seconds=60))
    dataset = open_set(tmp_path, timeout=1, retry=2, store={"request_timeout": 60})
    assert_fails(dataset, way, StoreTimeout, r"shard \d .*shard\.0000\d")


@pytest.mark.parametrize("way", ALONE_AND_THREADS)
def test_e12_a_redirect_to_another_host_is_not_followed(faults, tmp_path, way):
    with FaultStore(own_process=True) as other:
        other.put_folder(written(), "set/")
        key = "/bucket/set/" + key_of(written(), 3)
        serve(faults).plant(Toxic("http", status=307, key=STORED, location=other.url + key))
        dataset = open_set(tmp_path)
        loader, taken = assert_fails(dataset, way, StoreError, f"shard 3 .*{SHARD}")
        assert other.log() == [], "only the named host gets a signed request"
    faults.heal()
    assert_resumes(loader, taken)


@pytest.mark.parametrize("way", ALONE_AND_THREADS)
def test_e17_a_brief_not_found_is_retried(faults, tmp_path, way):
    serve(faults)
    for number in range(7):
        faults.plant(Toxic("http", key=f"*shard.{number:05}*", status=404, count=1))
    assert_exact(open_set(tmp_path), way)
