"""`measure_reading`: its figures, and that it leaves nothing behind."""

import json

import pytest

from smalti import measure_reading, open_dataset
from smalti.cache import CacheOptions
from smalti.errors import CatalogError, ChecksumMismatch, StoreNotFound
from smalti.writer import MDSWriter
from tests.shard_sets import COLUMNS, write_set

pytestmark = pytest.mark.slow


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def remote(s3_server, s3_bucket):
    """The address and the options of a set of 60 samples behind S3."""
    url, options = f"s3://{s3_bucket}/set", {"endpoint_url": s3_server}
    write_set(url, 60, storage_options=options)
    return url, options


def test_each_kind_of_reading_has_a_speed_for_each_number_of_threads(remote, tmp_path):
    url, options = remote
    seen = []
    found = measure_reading(
        url, storage_options=options, seconds=1.2, threads=(1, 2), local=tmp_path, on_speed=seen.append
    )
    kinds = [(each.work, each.threads) for each in found.speeds]
    assert kinds == [(work, threads) for threads in (1, 2) for work in ("link", "cold", "warm")]
    assert tuple(seen) == found.speeds
    assert (found.version, found.samples, found.is_read_in_place) == (1, 60, False)
    for each in found.speeds:
        assert each.samples_per_second > 0
        assert 0 < each.latency.median <= each.latency.p90 <= each.latency.p99 <= each.latency.longest
    assert found.round_trip.median > 0
    rows = json.loads(json.dumps(found.to_dict()))["speeds"]
    assert rows[1]["share_of_link"] == found.share_of_link(1) > 0


def test_a_cold_read_takes_no_sample_twice_and_counts_stored_bytes(tmp_path):
    write_set(tmp_path / "set", 60)
    found = measure_reading(tmp_path / "set", seconds=0.6, threads=(3,), local=tmp_path)
    cold = found.speed("cold", 3)
    assert 0 < cold.samples <= 60
    assert cold.num_bytes <= found.num_bytes
    assert found.is_read_in_place


def test_an_existing_cache_is_neither_read_nor_changed(remote, tmp_path):
    url, options = remote
    local = tmp_path / "cache"
    dataset = open_dataset(url, cache=CacheOptions(local=str(local)), storage_options=options)
    assert dataset[7]["id"] == 7
    dataset.close()
    before = contents(local)
    assert before
    measure_reading(url, storage_options=options, seconds=0.3, threads=(1,), local=local)
    assert contents(local) == before


def test_a_damaged_shard_ends_the_measurement_and_its_folder_is_removed(tmp_path):
    write_set(tmp_path / "set", 30)
    shard = min((tmp_path / "set").rglob("*.mds"))
    shard.write_bytes(b"\0" * shard.stat().st_size)
    (tmp_path / "cache").mkdir()
    with pytest.raises(ChecksumMismatch):
        measure_reading(tmp_path / "set", seconds=0.3, threads=(1,), local=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_place_without_samples_is_an_error(tmp_path):
    with pytest.raises(StoreNotFound):
        measure_reading(tmp_path / "nothing", local=tmp_path)
    with MDSWriter(out=str(tmp_path / "empty"), columns=COLUMNS):
        pass
    with pytest.raises(CatalogError, match="no samples"):
        measure_reading(tmp_path / "empty", local=tmp_path)


@pytest.mark.parametrize(("seconds", "threads"), [(0, (1,)), (1, ()), (1, (0,))])
def test_a_measurement_needs_time_and_threads(tmp_path, seconds, threads):
    with pytest.raises(ValueError, match="expected seconds > 0"):
        measure_reading(tmp_path, seconds=seconds, threads=threads)
