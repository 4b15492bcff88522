"""One wide table with the hard values of every type, made by Spark, stored, and read by Smalti and MosaicML."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from smalti.dataset import StreamingDataset
from smalti.spark import dataframe_to_mds
from tests.golden.conftest import peer, peer_reads

__all__ = ["peer"]
pytestmark = [pytest.mark.spark, pytest.mark.slow]

SQL = """
    select id, cast(if(id = 0, -128, 127) as byte) tiny, cast(if(id = 0, -32768, 32767) as short) small,
        if(id = 0, -9223372036854775808L, 9223372036854775807L) big, id + 250 unsigned,
        if(id = 0, float('NaN'), float('-0.0')) single, if(id = 0, double('Infinity'), 4.9E-324D) double,
        id = 0 flag, cast(if(id = 0, '-99999999999999999999.999999', '0.000001') as decimal(26, 6)) price,
        if(id = 0, date'0001-01-01', date'9999-12-31') day,
        if(id = 0, timestamp'1900-01-01 00:00:00 America/New_York', timestamp'9999-12-31 23:59:59.999999 UTC') moment,
        timestamp_ntz'2024-03-31 02:30:00' + make_interval(0, 0, 0, id) clock,
        if(id = 0, interval '-1 00:00:00.000001' day to second, interval '3' second) span,
        if(id = 0, interval '-2-3' year to month, interval '5' month) months,
        'a\\0é\U0001f60b' text, cast('ab' as varchar(4)) short_text, cast(if(id = 0, '', 'x') as binary) blob,
        if(id = 0, array(), array(1, 2)) numbers, array(array(1.5F, 2F), array(3F, id + 0F)) grid,
        array(true, id = 0) flags,
        array(date'1969-12-31') days, array('a', null) words, map(id, array(cast('x' as binary))) lookup,
        named_struct('at', timestamp'1970-01-01 00:00:01 UTC', 'p', cast(1.50 as decimal(5, 2)), 'n', cast(null as int))
            info,
        if(id = 0, null, id) holes, `id` `odd. ``name`
    from range(2)
"""


def test_b18_every_type_through_spark_and_back(spark, peer, tmp_path):
    features = spark.createDataFrame(
        [(0, Vectors.dense([1.0, 2.0])), (1, Vectors.sparse(3, [1], [5.0]))], ["key", "features"]
    )
    table = spark.sql(SQL).join(features.withColumnRenamed("key", "id"), "id").coalesce(1).sortWithinPartitions("id")
    root = str(tmp_path / "set")
    manifest = dataframe_to_mds(
        table, root, nulls={"holes": "mask"}, columns=dict.fromkeys(table.columns) | {"unsigned": "uint8"}
    )
    first, second = (dict(StreamingDataset(remote=root)[number]) for number in (0, 1))
    assert manifest.rows == 2

    arrays = ("numbers", "grid", "flags", "days", "features")
    first_arrays, second_arrays = ({name: sample.pop(name) for name in arrays} for sample in (first, second))
    assert np.isnan(first.pop("single"))
    assert np.signbit(second.pop("single"))
    assert first == {
        "id": 0, "tiny": -128, "small": -32768, "big": -(2**63), "unsigned": 250, "double": float("inf"), "flag": True,
        "price": Decimal("-99999999999999999999.999999"), "day": np.datetime64("0001-01-01"),
        "moment": np.datetime64("1900-01-01T05:00:00.000000"),
        "clock": np.datetime64("2024-03-31T02:30:00.000000"), "span": np.timedelta64(-86_400_000_001, "us"),
        "months": np.timedelta64(-27, "M"), "text": "a\0é😋", "short_text": "ab", "blob": b"",
        "words": ["a", None], "lookup": {0: [b"x"]}, "holes": None, "odd. `name": 0,
        "info": {"at": np.datetime64("1970-01-01T00:00:01"), "p": Decimal("1.50"), "n": None},
    }  # fmt: skip
    assert second == {
        "id": 1, "tiny": 127, "small": 32767, "big": 2**63 - 1, "unsigned": 251, "double": 5e-324, "flag": False,
        "price": Decimal("0.000001"), "day": np.datetime64("9999-12-31"),
        "moment": np.datetime64("9999-12-31T23:59:59.999999"), "clock": np.datetime64("2024-04-01T02:30:00.000000"),
        "span": np.timedelta64(3_000_000, "us"), "months": np.timedelta64(5, "M"), "text": "a\0é😋", "short_text": "ab",
        "blob": b"x", "words": ["a", None], "lookup": {1: [b"x"]}, "holes": 1, "odd. `name": 1,
        "info": {"at": np.datetime64("1970-01-01T00:00:01"), "p": Decimal("1.50"), "n": None},
    }  # fmt: skip
    assert {name: array.tolist() for name, array in first_arrays.items()} == {
        "numbers": [], "grid": [[1.5, 2], [3, 0]], "flags": [True, True], "days": [dt.date(1969, 12, 31)],
        "features": [1, 2],
    }  # fmt: skip
    assert {name: array.tolist() for name, array in second_arrays.items()} == {
        "numbers": [1, 2], "grid": [[1.5, 2], [3, 1]], "flags": [True, False], "days": [dt.date(1969, 12, 31)],
        "features": [0, 5, 0],
    }  # fmt: skip
    theirs = peer_reads(peer, root, tmp_path / "theirs.json", "streaming")
    assert [
        {name: row[name] for name in ("tiny", "flag", "day", "months", "span", "price", "text")}
        | {name: row[name] for name in ("holes", "holes__is_null")}
        for row in theirs
    ] == [
        {"tiny": -128, "flag": 1, "day": -719_162, "months": -27, "span": -86_400_000_001,
         "price": Decimal("-99999999999999999999.999999"), "text": "a\0é😋", "holes": 0, "holes__is_null": 1},
        {"tiny": 127, "flag": 0, "day": 2_932_896, "months": 5, "span": 3_000_000,
         "price": Decimal("0.000001"), "text": "a\0é😋", "holes": 1, "holes__is_null": 0},
    ]  # fmt: skip
    assert [row["numbers"].tolist() for row in theirs] == [[], [1, 2]]
    assert theirs[1]["lookup"] == [[1, ["eA=="]]]
