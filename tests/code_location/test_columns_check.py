"""The check of the columns that a declaration of rows names."""

from typing import Any, cast

import dagster as dg
import pytest

from smalti_dagster.checks.check import CheckInput
from smalti_dagster.checks.content import build_prepared_checks, build_raw_checks
from smalti_dagster.declaration import Checks, Declaration, Prepare, Shards, Source, Split

COLUMNS = dg.TableSchema([dg.TableColumn("id", "bigint"), dg.TableColumn("text", "string")])


def sales(**attributes: Any) -> Declaration:
    return Declaration(name="sales", source=Source(table="lake.sales"), **attributes)


def evaluated(declared: Declaration, stage: str = "raw") -> dg.AssetCheckResult:
    [check] = (build_raw_checks if stage == "raw" else build_prepared_checks)(declared)
    nothing = cast(Any, None)
    step = CheckInput(declared, nothing, nothing, nothing, check.spec.key, {"dagster/column_schema": COLUMNS})
    return check.evaluate(step)


def test_columns_that_are_there_pass_with_their_types() -> None:
    found = evaluated(sales(split=Split(key="id"), shards=Shards(columns={"text": "str"}, nulls={"text": "mask"})))
    assert found.passed
    shown: Any = found.metadata["columns"]
    assert [tuple(each.data.values()) for each in shown.records] == [
        ("id", "split.key", "bigint"),
        ("text", "shards.columns", "string"),
        ("text", "shards.nulls", "string"),
    ]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"split": Split(column="fold")}, "`split.column` names 'fold': the columns are id, text"),
        ({"shards": Shards(columns={"amount": None})}, "`shards.columns` names 'amount': the columns are id, text"),
        ({"shards": Shards(nulls={"amount": "mask"})}, "`shards.nulls` names 'amount': the columns are id, text"),
    ],
)
def test_a_column_that_is_missing_is_named_with_the_field_that_names_it(
    attributes: dict[str, Any], message: str
) -> None:
    found = evaluated(sales(**attributes))
    assert not found.passed
    assert found.description == message


def test_what_is_stored_is_looked_for_in_what_a_function_gives() -> None:
    declared = sales(prepare=Prepare(function="module:clean"), shards=Shards(columns={"amount": None}))
    assert evaluated(declared).passed
    assert not evaluated(declared, "prepared").passed


def test_a_check_may_warn_or_be_left_out() -> None:
    [warning] = build_raw_checks(sales(checks=Checks(severity={"columns_are_as_declared": "warn"})))
    assert not warning.spec.blocking
    assert build_raw_checks(sales(checks=Checks(severity={"columns_are_as_declared": "none"}))) == []


def test_a_severity_of_a_check_that_rows_do_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="a set of rows has no check few_near_duplicates; it has no_split_leakage"):
        sales(checks=Checks(severity={"few_near_duplicates": "block"}))
