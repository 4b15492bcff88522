"""Identity of the rows of a DataFrame, and their splits."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from smalti.errors import SchemaError
from smalti.spark.rows import by_split, identities_in, identity_of, in_partitions, transformed, with_split
from smalti.writer.tables.transform import as_transform


def numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One row with all numbers of a batch."""
    return pa.RecordBatch.from_pydict({"numbers": [batch.column("number").to_pylist()]})


BATCH = pa.RecordBatch.from_pydict({"number": [1, 2, 3, 4], "split": ["b", "a", "b", "a"]})


def test_an_arrow_function_is_called_for_one_split_at_a_time():
    found = by_split(numbers, "split").function(BATCH)
    assert found.to_pylist() == [{"numbers": [2, 4], "split": "a"}, {"numbers": [1, 3], "split": "b"}]


def test_a_split_that_the_function_gives_itself_is_kept():
    found = by_split(lambda batch: batch.slice(0, 1), "split").function(BATCH)
    assert found.to_pylist() == [{"number": 2, "split": "a"}, {"number": 1, "split": "b"}]


def test_a_pandas_function_is_called_for_one_split_at_a_time():
    import pandas as pd

    def total(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"total": [frame["number"].sum()]})

    transform = by_split(total, "split")
    assert transform.form == "pandas"
    found = transform.function(BATCH.to_pandas())
    assert found.to_dict("records") == [{"total": 6, "split": "a"}, {"total": 4, "split": "b"}]


def test_a_function_over_iterators_is_left_alone():
    def all_of_them(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    assert by_split(all_of_them, "split").function is all_of_them


def test_a_row_without_a_split_is_refused():
    batch = pa.RecordBatch.from_pydict({"number": [1], "split": pa.array([None], pa.string())})
    with pytest.raises(SchemaError, match="'split' names the split of a row, and is null"):
        by_split(numbers, "split").function(batch)


@pytest.mark.slow
@pytest.mark.spark
def test_shares_are_kept_about_and_rows_stay_where_they_are_when_others_come(spark):
    def splits(count):
        found = with_split(spark.range(count), {"validation": 0.2, "test": 0.1}, seed=7).collect()
        return {row["id"]: row["split"] for row in found}

    before, after = splits(1000), splits(1500)
    assert {row: after[row] for row in before} == before
    shares = {name: sum(each == name for each in before.values()) / 1000 for name in set(before.values())}
    assert shares.keys() == {"train", "validation", "test"}
    assert abs(shares["validation"] - 0.2) < 0.05
    assert abs(shares["test"] - 0.1) < 0.05


@pytest.mark.slow
@pytest.mark.spark
def test_rows_with_the_same_key_are_in_the_same_split(spark):
    df = spark.range(1000).selectExpr("id", "id % 50 AS customer", "map('a', id) AS facts")
    found = with_split(df, {"validation": 0.5}, key="customer").select("customer", "split").distinct().collect()
    assert len(found) == 50
    assert {row["split"] for row in found} == {"train", "validation"}
    assert with_split(df, {"validation": 0.5}).count() == 1000  # a map is hashed as well
    with pytest.raises(SchemaError, match="the key of the split is 'client'"):
        with_split(df, {}, key="client")
    with pytest.raises(SchemaError, match="have a column 'split' already"):
        with_split(df.withColumnRenamed("id", "split"), {})


@pytest.mark.slow
@pytest.mark.spark
def test_rows_of_no_known_source_are_identified_by_their_content_in_any_order(spark, tmp_path):
    rows = [(number, f"text {number}") for number in range(20)]
    first, again = (spark.createDataFrame(each, "number int, text string") for each in (rows, rows[::-1]))
    assert identity_of(first).digest == identity_of(again.repartition(3)).digest
    assert identity_of(first).rows == 20
    for other in (rows[1:], [*rows, rows[0]], [(0, "other"), *rows[1:]]):
        assert identity_of(spark.createDataFrame(other, "number int, text string")).digest != identity_of(first).digest
    first.write.parquet(str(tmp_path / "table"))
    known = identity_of(spark.read.parquet(str(tmp_path / "table")))
    assert (known.rows, known.how) == (None, "the source's versions or files, and the query")


def days(spark, rows):
    return spark.createDataFrame(rows, "number int, day string").selectExpr("number", "cast(day as date) as day")


@pytest.mark.slow
@pytest.mark.spark
def test_each_partition_has_an_identity_that_changes_with_its_rows_alone(spark):
    keys = ("2026-11-01", "2026-11-02", "2026-11-03")
    rows = [(1, "2026-11-01"), (2, "2026-11-01"), (1, "2026-11-02"), (9, "2026-12-31")]
    before = identities_in(days(spark, rows), "day", keys)
    assert {key: found.rows for key, found in before.items()} == {"2026-11-01": 2, "2026-11-02": 1}
    assert before["2026-11-01"].digest != before["2026-11-02"].digest
    other_order = identities_in(days(spark, rows[::-1]).repartition(3), "day", keys)
    assert other_order == before
    after = identities_in(days(spark, [*rows, (3, "2026-11-02")]), "day", keys)
    assert after["2026-11-01"] == before["2026-11-01"]
    assert after["2026-11-02"] != before["2026-11-02"]


@pytest.mark.slow
@pytest.mark.spark
def test_the_rows_of_some_partitions_have_their_key_as_text(spark):
    frame = days(spark, [(1, "2026-11-01"), (2, "2026-11-02")])
    assert in_partitions(frame, "day", ["2026-11-02"]).collect() == [(2, "2026-11-02")]
    with pytest.raises(SchemaError, match="'month', the rows have number, day"):
        in_partitions(frame, "month", ["1"])


@pytest.mark.slow
@pytest.mark.spark
def test_a_transformed_frame_has_the_columns_and_rows_that_the_function_gives(spark):
    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        both = [value * 2 for value in batch.column("id").to_pylist()]
        return pa.RecordBatch.from_pydict({"twice": pa.array(both, pa.int32())})

    found = transformed(spark.range(5), as_transform(doubled))
    assert found.schema.simpleString() == "struct<twice:int>"
    assert sorted(row["twice"] for row in found.collect()) == [0, 2, 4, 6, 8]
    with pytest.raises(SchemaError, match="gave no rows for the first 2"):
        transformed(spark.range(2), as_transform(lambda batch: batch.slice(0, 0)))


@pytest.mark.spark
def test_a_value_that_moves_to_another_column_changes_the_identity(spark):
    before = spark.range(1).selectExpr("cast(null as int) AS a", "1 AS b", "id AS part")
    after = spark.range(1).selectExpr("1 AS a", "cast(null as int) AS b", "id AS part")
    digests = {
        identity_of(before).digest,
        identity_of(after.selectExpr("a", "if(part < 0, 1, b) AS b", "part")).digest,
        *(identities_in(frame, "part", ["0"])["0"].digest for frame in (before, after)),
    }
    assert len(digests) == 4
