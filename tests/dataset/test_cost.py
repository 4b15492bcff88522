"""Seconds and price of a run: a forecast whose figures are computed by hand, and rates as people write them."""

import pytest

from smalti import forecast_epoch, run_cost
from smalti.dataset.forecast import Forecast, HostForecast, Rates, ReaderSetup, parse_rate
from smalti.errors import SchemaError
from tests.shard_sets import write_set

READER = ReaderSetup(hosts=2, ranks_on_host=4, batch_size=8)
FOUND = Forecast(
    samples=6400,
    shards=12,
    stored_bytes=1_200_000_000,
    steps=100,
    global_batch=64,
    repeats=0,
    hosts=(
        HostForecast(0, shards=10, cold_bytes=1_000_000_000, cache_bytes=0, window_bytes=0, warm_bytes=200_000_000),
        HostForecast(1, shards=5, cold_bytes=500_000_000, cache_bytes=0, window_bytes=0, warm_bytes=0),
    ),
    plan_bytes=0,
    batch_bytes=0,
    window_samples=0,
    window_shards=0.0,
)
GIGABIT = 125_000_000.0
RATES = Rates(link=GIGABIT, store=3e8, read=200, step=0.05, host_hour=36, egress_gb=0.1, thousand_gets=0.4)


def test_the_slowest_of_link_store_reading_and_computing_decides():
    cost = run_cost(FOUND, READER, RATES, epochs=3)
    # The fuller host's 10^9 bytes over its link; both hosts' 1.5 * 10^9 from the store; 100 steps of 8 samples.
    assert cost.first.seconds_by == pytest.approx({"link": 8.0, "store": 5.0, "read": 4.0, "compute": 5.0})
    assert (cost.first.bound_by, cost.first.seconds) == ("link", 8.0)
    assert cost.later.seconds_by == pytest.approx({"link": 1.6, "store": 2 / 3, "read": 4.0, "compute": 5.0})
    assert (cost.later.bound_by, cost.later.seconds) == ("compute", 5.0)
    assert cost.seconds == pytest.approx(8 + 2 * 5)


def test_machines_traffic_and_requests_are_priced():
    cost = run_cost(FOUND, READER, RATES, epochs=3)
    # Two hosts for 8 s at 36 an hour are 0.16; 1.5 GB at 0.1; 15 shards, one request each.
    assert (cost.first.machines_price, cost.first.egress_price) == pytest.approx((0.16, 0.15))
    assert (cost.first.requests, cost.first.requests_price) == (15, pytest.approx(0.006))
    # A fifth of the first host's bytes, so a fifth of its ten shards.
    assert (cost.later.num_bytes, cost.later.requests) == (200_000_000, 2)
    assert cost.later.price == pytest.approx(0.1 + 0.02 + 0.0008)
    assert cost.price == pytest.approx(0.316 + 2 * 0.1208)
    assert cost.to_dict()["first"]["price"] == pytest.approx(0.316)


def test_unknown_rates_are_not_counted():
    cost = run_cost(FOUND, READER, Rates(link=GIGABIT)).first
    assert (cost.seconds_by, cost.price) == ({"link": 8.0}, 0.0)
    without = run_cost(FOUND, READER, Rates(host_hour=36)).first
    assert (without.seconds, without.bound_by, without.price) == (0.0, "", 0.0)


def test_a_forecast_of_a_version_needs_its_address_alone(tmp_path):
    root = write_set(tmp_path / "set", 40)
    found = forecast_epoch(root, ReaderSetup(1, 2, 4), shuffle=False)
    assert (found.samples, found.steps, found.global_batch) == (40, 5, 8)
    cost = run_cost(found, ReaderSetup(1, 2, 4), Rates(link=1.0))
    assert cost.first.seconds == found.cold_bytes
    assert cost.later.requests == 0


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10Gbit", 1.25e9), ("2.5 gbps", 312_500_000.0), ("100Mbit/s", 12_500_000.0), ("800bit", 100.0),
     ("500MB", 500 * 1024**2), ("1GB/s", 1024.0**3), ("4096", 4096.0)],
)  # fmt: skip
def test_rates_are_bits_in_thousands_or_bytes(text, rate):
    assert parse_rate(text, what="--link") == rate


@pytest.mark.parametrize("text", ["", "fast", "10Gbits/h", "0Gbit", "-1MB"])
def test_other_rates_are_refused(text):
    with pytest.raises(SchemaError, match="--link: expected a rate such as 10Gbit or 500MB"):
        parse_rate(text, what="--link")


@pytest.mark.parametrize(
    "wrong", [{"link": 0}, {"read": -1}, {"store": float("inf")}, {"step": -0.1}, {"host_hour": -1}]
)
def test_rates_and_prices_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}`: expected"):
        Rates(**wrong)
    with pytest.raises(ValueError, match="`epochs`: expected 1 or more"):
        run_cost(FOUND, READER, Rates(), epochs=0)
