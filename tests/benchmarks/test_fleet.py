"""The fleet simulator: against the dataset's own lookups, against arithmetic, and against the page that shows it."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.excerpt import excerpt
from benchmarks.fleet.__main__ import main
from benchmarks.fleet.hosts import HostCache
from benchmarks.fleet.needs import PieceNeeds, Plan, SampleNeeds
from benchmarks.fleet.picture import PICTURE, drawn, panels_of
from benchmarks.fleet.setting import DataSet, Fleet, Order, Store
from benchmarks.fleet.simulation import simulate
from benchmarks.fleet.store import HostLink

ROOT = Path(__file__).resolve().parents[2]
SMALL = DataSet("small", 100_000, 10_000, 400)
WINDOW, MOSAIC = Order("window", 8, 2_000), Order("mosaicml", None, 8_000)
FLEET = Fleet(4, ranks=2, batch_size=32, workers=2)
PLAIN = Store(latency_s=0.1, latency_spread=0.0, host_bytes_per_s=1e6, connection_bytes_per_s=1e9)


@pytest.mark.parametrize("order", [WINDOW, MOSAIC, Order("window", 6, 2_000)])
@pytest.mark.parametrize("cache", [None, 150_000_000])
def test_shards_give_what_samples_give(order, cache):
    fleet = replace(FLEET, cache_bytes=cache)
    by_shard, by_sample = (simulate(SMALL, fleet, order, by_sample=each, max_hosts=4) for each in (False, True))
    for found, expected in zip(by_shard.epochs, by_sample.epochs, strict=True):
        assert found.bytes_per_host == pytest.approx(expected.bytes_per_host, rel=0.03, abs=SMALL.shard_bytes)
        assert found.seconds == pytest.approx(expected.seconds, rel=0.03)


def test_samples_are_looked_up_in_the_order_of_the_affinity():
    """4 hosts, affinity 0.5: of the half of the shards that is dealt anew, one in 4 comes back to its host."""
    plan = Plan(SMALL, FLEET, replace(WINDOW, affinity=0.5))
    first, second = (
        {shard for stretch in SampleNeeds(plan, 1).epoch(epoch) for shard in stretch.shards.tolist()}
        for epoch in (1, 2)
    )
    assert len(second - first) / len(second) == pytest.approx(0.375, abs=0.06)


def test_some_hosts_stand_for_all():
    some, every = (simulate(SMALL, replace(FLEET, hosts=16), WINDOW, max_hosts=most) for most in (3, 16))
    assert (some.simulated_hosts, every.simulated_hosts) == (3, 16)
    assert some.epochs[0].bytes_per_host == pytest.approx(every.epochs[0].bytes_per_host, rel=0.03)


@pytest.mark.parametrize(("nodes", "hosts", "times"), [(8, 4, 1), (8, 3, 3), (8, 16, 2), (6, 4, 2)])
def test_a_host_that_reads_a_part_of_a_run_fetches_the_shards_of_all_of_it(nodes, hosts, times):
    found = simulate(SMALL, replace(FLEET, hosts=hosts), Order("window", nodes, 2_000), max_hosts=hosts)
    assert found.epochs[0].amplification == pytest.approx(times, rel=0.06)  # shards cut at the ends of runs come twice
    assert found.epochs[1].bytes_per_host == 0


def test_the_steps_of_both_ways_to_look_up_are_the_same():
    plan = Plan(SMALL, FLEET, WINDOW)
    for found, expected in zip(PieceNeeds(plan, 1).epoch(1), SampleNeeds(plan, 1).epoch(1), strict=True):
        assert (found.number, found.first, found.stop) == (expected.number, expected.first, expected.stop)
        assert (
            len({*found.shards.tolist()} ^ {*expected.shards.tolist()}) <= 0.2 * expected.shards.size
        )  # a few samples at the edge of a window


@given(limit=st.integers(20, 200), hosts=st.sampled_from([1, 2, 4]), order=st.sampled_from([WINDOW, MOSAIC]))
@settings(max_examples=15)
def test_copies_never_take_more_than_the_limit(limit, hosts, order):
    plan = Plan(replace(SMALL, samples=40_000), replace(FLEET, hosts=hosts), order)
    needs = PieceNeeds(plan, 0)
    cache = HostCache(needs, limit * SMALL.shard_bytes)
    for epoch in range(2):
        cache.begin_epoch(epoch)
        for stretch in needs.epoch(epoch):
            admitted, late = cache.admit(stretch, stretch.number - 1)
            assert cache.used == cache.is_present.sum() * SMALL.shard_bytes <= limit * SMALL.shard_bytes
            assert cache.is_present[stretch.shards[admitted]].all()
            assert not cache.is_present[stretch.shards[late]].any()


def test_a_link_takes_its_latency_and_its_bandwidth():
    link = HostLink(PLAIN, Fleet(1, ranks=1), host=0)
    assert link.fetch(5.0, [1_000_000, 500_000], is_ahead=True) == pytest.approx([6.1, 6.6])


def test_hosts_share_the_bandwidth_and_the_requests_of_the_store():
    store = replace(PLAIN, host_bytes_per_s=1e9, total_bytes_per_s=2e6, requests_per_s=20.0)
    assert HostLink(store, Fleet(2, ranks=1), 0).fetch(0.0, [1_000_000], is_ahead=True) == pytest.approx([1.1])
    few = HostLink(replace(store, total_bytes_per_s=1e12), Fleet(2, ranks=1), 0)
    assert few.fetch(0.0, [1, 1, 1], is_ahead=True) == pytest.approx([0.1, 0.2, 0.3], abs=1e-3)


def test_a_late_shard_is_fetched_by_its_reader_alone():
    link = HostLink(replace(PLAIN, host_bytes_per_s=1e12), Fleet(1, ranks=1), 0)
    assert link.fetch(0.0, [1, 1, 1], is_ahead=False) == pytest.approx([0.1, 0.2, 0.3], abs=1e-3)


def test_training_waits_for_what_the_link_cannot_bring():
    store = replace(PLAIN, host_bytes_per_s=1e8, latency_s=0.001)
    found = simulate(SMALL, replace(FLEET, samples_per_s=1e6), WINDOW, store)
    first, later = found.epochs
    assert first.seconds == pytest.approx(first.bytes_per_host / 1e8, rel=0.05)
    assert later.seconds == pytest.approx(later.first_batch_s + SMALL.samples / 8 / 1e6, rel=0.05)


def test_a_price_is_that_of_its_requests_and_bytes():
    found = simulate(SMALL, FLEET, WINDOW, replace(PLAIN, per_thousand_requests=1.0, per_gb=2.0), epochs=1, max_hosts=4)
    (epoch,) = found.epochs
    assert epoch.price == pytest.approx(epoch.fetches / 1000 + epoch.bytes_per_host * 4 / 1e9 * 2)


def test_the_program_prints_a_table(capsys):
    main(["--samples", "1e6", "--hosts", "8,96", "--fitted", "--cache", "100GB"])
    header, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert header.startswith("| hosts | order | canonical nodes |")
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| 8", "window", "64"], ["| 8", "MosaicML", "8"], ["| 96", "window", "96"], ["| 96", "MosaicML", "96"],
    ]  # fmt: skip


def test_the_command_of_the_page_prints_its_fleets(capsys):
    block = (ROOT / "docs" / "scale.md").read_text().split("```bash\n")[1].split("```")[0]
    command, other = block.strip().splitlines()
    assert other == "python -m benchmarks.fleet --help"
    main(shlex.split(command.removeprefix("python -m benchmarks.fleet ")))
    rows = capsys.readouterr().out.strip().splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| 8", "| 8", "| 24", "| 24"]


def test_the_picture_and_the_tables_of_the_page_are_those_of_the_newest_sweep():
    newest = max((ROOT / "benchmarks" / "results").glob("*-fleet.json"))
    assert PICTURE.read_text() == drawn(panels_of(json.loads(newest.read_text()))), f"--picture {newest}"
    page = (ROOT / "docs" / "scale.md").read_text()
    assert excerpt(page) == page, "run: .venv/bin/python -m benchmarks excerpt docs/scale.md"
