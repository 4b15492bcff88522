"""The warning of a run whose hosts fetch the same shards, which its first pass gives."""

import warnings

import pytest

from smalti.cache import CacheOptions
from smalti.dataset import StreamingDataset
from smalti.stream import Stream
from smalti.world import World
from tests.faults.cached_sets import remote_set
from tests.reading_options import grouped
from tests.shard_sets import write_set

THREE = World(0, 3, 0, 3)


@pytest.fixture
def warned(tmp_path, monkeypatch):
    """Return the warnings of two passes, where `much` times the stored bytes are too many; and the stored bytes."""
    remote = remote_set(tmp_path / "set", 40)

    def found(world=THREE, nodes=4, *, much=2, local="cache", **options):
        streams = options.pop("streams", [Stream(remote=str(remote), cache=CacheOptions(local=str(tmp_path / local)))])
        options = {"shuffle": True, "batch_size": 2} | options
        dataset = StreamingDataset(streams=streams, world=world, **grouped(num_canonical_nodes=nodes, **options))
        stored = sum(dataset.stream.costs()[1])
        monkeypatch.setattr("smalti.dataset.lookahead._MUCH_WASTED", max(1, much * stored))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dataset._smalti.begin_pass()
            dataset._smalti.begin_pass()
        dataset.close()
        return [str(each.message) for each in caught], stored

    found.remote = remote
    return found


def test_the_warning_names_the_bytes_and_the_canonical_nodes_that_fit(warned):
    """4 runs on 3 hosts: each host reads all of them, so 2 sets are fetched more than once. The next multiple of 3 from
    4 is 6. The warning comes once, and only from so many bytes on."""
    (message,), stored = warned()
    assert message.startswith(f"each shard is fetched by 3 of the 3 hosts, {2 * stored:,} bytes more than once: 4 ")
    assert "OrderOptions(num_canonical_nodes=6)" in message
    assert warned(much=3)[0] == []


def test_more_hosts_than_canonical_nodes_share_runs(warned):
    """2 runs on 4 hosts: two for each, so one set is fetched more than once."""
    (message,), stored = warned(World(0, 4, 0, 4), 2, much=1)
    assert message.startswith(f"each shard is fetched by 2 of the 4 hosts, {stored:,} bytes more than once: 2 ")
    assert "OrderOptions(num_canonical_nodes=4)" in message


@pytest.mark.parametrize(
    ("world", "options"),
    [
        (World(0, 4, 0, 4), {}),  # a run for each host
        (World.of_blocks(0, 6, 2), {}),  # six ranks on two hosts
        (World(1, 3, 1, 3), {}),  # not the first rank
        (THREE, {"shuffle": False}),
    ],
)
def test_other_runs_give_no_warning(warned, world, options):
    assert warned(world, much=0.1, **options)[0] == []


def test_shards_that_are_read_where_they_lie_give_no_warning(warned, tmp_path):
    folder = write_set(tmp_path / "plain", 40)
    assert warned(streams=[Stream(remote=str(folder))]) == ([], 0)


@pytest.mark.parametrize(
    ("method", "count"), [("random", 1), ("per_stream", 1), ("stratified", 0), ("device_per_stream", 0)]
)
def test_batches_for_which_every_host_reads_all_shards_give_no_warning(warned, tmp_path, method, count):
    streams = [
        Stream(remote=str(warned.remote), cache=CacheOptions(local=str(tmp_path / name)), repeat=1)
        for name in ("a", "b")
    ]
    assert len(warned(much=0.1, streams=streams, batching_method=method)[0]) == count
