"""Forecasts of an epoch's cost, compared with an epoch that is simulated sample by sample."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.catalog.table.shard_table import ShardBytes
from smalti.cursor import MAX_BLOCK, Cursor, MixedStream
from smalti.dataset.forecast import ReaderSetup, forecast
from smalti.dataset.order import RunOrder
from smalti.dataset.resume import first_cursor
from smalti.errors import CursorError
from smalti.order import Division, plan_epoch
from smalti.world import World


def shards_of(sizes, bytes_of_sample=10, ratio=2):
    sizes = np.array(sizes, dtype=np.int64)
    stored = sizes * bytes_of_sample
    return sizes, ShardBytes(stored * ratio, stored, np.zeros_like(sizes))


def cursor_of(sizes, **options) -> Cursor:
    return first_cursor(RunOrder(**options), World(), [MixedStream("d", None, sum(sizes))], [sizes])


def simulated(cursor, sizes, raw, reader):
    """Return, for every host, the shards it reads and the most unpacked bytes held from first to last use of each."""
    plan = plan_epoch(
        sizes,
        seed=cursor.seed,
        epoch=cursor.epoch,
        canonical_nodes=cursor.canonical_nodes,
        shuffle_block_size=cursor.block_size,
        shuffle=cursor.shuffle,
    )
    ends, found = np.cumsum(sizes), []
    whole = cursor.epoch_size // cursor.canonical_nodes * cursor.canonical_nodes  # behind it runs are no longer even
    for host in range(reader.hosts):
        used: dict[int, list[int]] = {}
        num_ranks = reader.hosts * reader.ranks_on_host
        for rank in range(num_ranks):
            world = World.of_blocks(rank, num_ranks, reader.hosts)
            if world.host == host:
                division = Division(cursor.epoch_size, 0, reader.batch_size, world, "short")
                for step in division.steps(0, division.num_steps):
                    real = step.lookup[(step.positions >= 0) & (step.lookup < whole)]
                    for shard in np.searchsorted(ends, plan.ids_at(real), side="right").tolist():
                        used.setdefault(shard, []).append(step.step)
        last = max((max(steps) for steps in used.values()), default=-1)
        held = [
            sum(int(raw[shard]) for shard, steps in used.items() if min(steps) <= step <= max(steps))
            for step in range(last + 1)
        ]
        found.append((set(used), max(held, default=0)))
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(sum),
    st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 1)]),
    st.integers(1, 6),
    st.sampled_from([1, 2, 4]),
    st.integers(5, 60),
    st.booleans(),
)
@pytest.mark.slow
def test_a_forecast_counts_the_shards_that_each_host_reads_and_holds(sizes, hosts, batch, nodes, block, shuffle):
    (samples, num_bytes), reader = shards_of(sizes), ReaderSetup(*hosts, batch)
    cursor = cursor_of(sizes, shuffle=shuffle, num_canonical_nodes=nodes, shuffle_block_size=block)
    found = forecast(cursor, samples, num_bytes, reader)
    slack = 2 * int(num_bytes.raw.max())  # the shards of a batch that reaches over a row's end
    for host, (read, held) in zip(found.hosts, simulated(cursor, samples, num_bytes.raw, reader), strict=True):
        assert read <= set(np.flatnonzero(samples).tolist())
        assert host.shards >= len(read)
        assert held <= host.window_bytes + slack * reader.ranks_on_host * batch
    if sum(sizes) >= 200 and hosts[0] in (1, 2) and nodes % hosts[0] == 0 and shuffle:
        assert [host.shards for host in found.hosts] == [
            len(read) for read, _ in simulated(cursor, samples, num_bytes.raw, reader)
        ], "each shard is read by somebody of its run"


def test_a_forecast_for_two_hosts_counted_by_hand():
    """40 shards of 100 samples; four runs, two for each host, so each host fetches 20 shards, unless one is cut."""
    sizes = [100] * 40
    cursor = cursor_of(sizes, shuffle=True, num_canonical_nodes=4, shuffle_block_size=200)
    found = forecast(cursor, *shards_of(sizes), ReaderSetup(hosts=2, ranks_on_host=4, batch_size=30))
    assert (found.samples, found.shards, found.stored_bytes) == (4000, 40, 40_000)
    assert (found.global_batch, found.steps, found.repeats) == (240, 17, 80)
    assert [(host.shards, host.cold_bytes, host.cache_bytes) for host in found.hosts] == [(20, 20_000, 40_000)] * 2
    assert [host.window_bytes for host in found.hosts] == [2 * 4 * 2000] * 2, "two runs, two windows of two shards"
    assert (found.window_samples, found.window_shards) == (800, 2.0)
    assert (found.cold_bytes, found.warm_bytes) == (40_000, 0)


@pytest.mark.parametrize(("room", "warm"), [(40_000, 0), (28_000, 6_000), (16_000, 12_000), (7_999, 20_000)])
def test_a_cache_of_at_least_one_window_saves_fetches(room, warm):
    """Each host has 20,000 bytes stored, 40,000 unpacked; two windows of two shards take 8,000."""
    sizes = [100] * 40
    cursor = cursor_of(sizes, shuffle=True, num_canonical_nodes=4, shuffle_block_size=200)
    found = forecast(cursor, *shards_of(sizes), ReaderSetup(2, 4, 30, cache_bytes=room))
    assert [host.warm_bytes for host in found.hosts] == [warm] * 2


@pytest.mark.parametrize(("room", "warm"), [(None, 2_000), (36_000, 2_000), (28_000, 6_000)])
def test_an_affinity_costs_the_shards_that_leave_a_host(room, warm):
    """A fifth of 20,000 bytes is dealt to both hosts, so half of it leaves: 2,000, with a cache for the other 18,000
    (36,000 unpacked). With a smaller cache, the affinity costs nothing: as above, 6,000."""
    sizes = [100] * 40
    cursor = cursor_of(sizes, shuffle=True, num_canonical_nodes=4, shuffle_block_size=200, affinity=0.8)
    found = forecast(cursor, *shards_of(sizes), ReaderSetup(2, 4, 30, cache_bytes=room))
    assert [host.warm_bytes for host in found.hosts] == [warm] * 2


def test_the_forecast_of_an_affinity_is_the_mean_of_the_epochs():
    """256 shards, 4 hosts of 2 runs, 24 epochs: the shards of each host that it did not read the epoch before."""
    sizes, new = [10] * 256, []
    cursor = cursor_of(sizes, shuffle=True, num_canonical_nodes=8, shuffle_block_size=40, affinity=0.7)
    read: list[set[int]] = [set()] * 4
    for epoch in range(25):
        plan = plan_epoch(sizes, seed=cursor.seed, epoch=epoch, canonical_nodes=8, shuffle_block_size=40, affinity=0.7)
        now = [set((plan.sample_ids(0, 2560)[host::4] // 10).tolist()) for host in range(4)]
        new.append([len(shards - before) * 100 for shards, before in zip(now, read, strict=True)])
        read = now
    found = forecast(cursor, *shards_of(sizes), ReaderSetup(4, 1, 10))
    assert [host.cold_bytes for host in found.hosts] == new[0]
    assert np.mean(new[1:]) == pytest.approx(found.hosts[0].warm_bytes, rel=0.05)


def test_hosts_that_do_not_divide_the_runs_fetch_everything():
    sizes = [100] * 40
    cursor = cursor_of(sizes, shuffle=True, num_canonical_nodes=4, shuffle_block_size=200)
    assert [host.shards for host in forecast(cursor, *shards_of(sizes), ReaderSetup(3, 1, 10)).hosts] == [40] * 3


def test_without_a_shuffle_a_host_holds_at_most_two_shards():
    sizes = [100] * 40
    found = forecast(cursor_of(sizes, shuffle=False), *shards_of(sizes), ReaderSetup(2, 1, 10))
    assert [(host.shards, host.window_bytes) for host in found.hosts] == [(40, 4000)] * 2


def test_a_forecast_refuses_mixtures():
    with pytest.raises(ValueError, match="for one stream, without weights"):
        forecast(cursor_of([100], epoch_size=50), *shards_of([100]), ReaderSetup(1, 1, 10))


def test_a_forecast_refuses_cursors_of_other_orders():
    cursor = replace(cursor_of([100]), algorithm="py1e")
    with pytest.raises(CursorError, match="py1e"):
        forecast(cursor, *shards_of([100]), ReaderSetup(1, 1, 10))


@pytest.mark.parametrize("nodes", [1, 2, 64])
def test_a_window_may_be_larger_than_any_epoch(nodes):
    """The positions of one row of windows are more than 64 bits hold."""
    sizes = [5, 0, 7, 9, 100] * 20
    options = {"shuffle": True, "num_canonical_nodes": nodes}
    found = [
        forecast(cursor_of(sizes, shuffle_block_size=block, **options), *shards_of(sizes), ReaderSetup(2, 1, 4))
        for block in (10_000, MAX_BLOCK)
    ]
    assert found[0].hosts == found[1].hosts
