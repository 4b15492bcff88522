"""Byte counts as people write them."""

import pytest

from smalti.errors import SchemaError
from smalti.format import parse_byte_count
from smalti.format.sizes import parse_size_limit


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (7, 7),
        ("8", 8),
        ("7b", 7),
        ("100kb", 102_400),
        ("1.5kb", 1536),
        (" 64MB ", 67_108_864),
        ("3gb", 3_221_225_472),
        ("1tb", 1_099_511_627_776),
        ("2yb", 2 * 1024**8),
    ],
)
def test_units_are_powers_of_1024(written, meant):
    assert parse_byte_count(written, what="`x`") == meant


@pytest.mark.parametrize("written", ["", "kb", "1 k", "-2", -1, 1.5, True, None, "1e3", "1kib", "0x10", "٣kb"])
def test_anything_else_is_refused(written):
    with pytest.raises(SchemaError, match="`x`"):
        parse_byte_count(written, what="`x`")


def test_size_limit_zero_and_none_mean_one_shard():
    assert parse_size_limit(None) is None
    assert parse_size_limit(0) is None


def test_size_limit_stays_below_four_gigabytes():
    assert parse_size_limit(2**32 - 1) == 2**32 - 1
    for limit in (2**32, "4gb"):
        with pytest.raises(SchemaError):
            parse_size_limit(limit)
