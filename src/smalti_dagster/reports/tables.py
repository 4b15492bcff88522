"""Tables for Dagster's UI, made from plain values; nothing here knows an asset."""

import math
from collections.abc import Mapping, Sequence

import dagster as dg

DIVERGED = "diverged"
"""The text in place of a training's value that is infinite or no number."""

MAX_TABLE_ROWS = 30
"""Rows of a table that a page of the UI still shows well; the UI itself shows all of them."""

Value = str | int | float | bool


def table(records: Sequence[Mapping[str, Value]], *, total: int | None = None) -> dg.TableMetadataValue:
    """Return a table of the records that ends with a count of those left out.

    Args:
        records: All with the same columns, at least one.
        total: Number of records that there are, if only the first of them are given.
    """
    left_out = max(len(records), total or 0) - MAX_TABLE_ROWS
    shown = [dict(record) for record in records[:MAX_TABLE_ROWS]]
    return _table([*shown, _gap(records[0], f"and {left_out} more")] if left_out > 0 else shown)


def table_of_facts(columns: Mapping[str, Mapping[str, Value]]) -> dg.TableMetadataValue:
    """Return a table with a row for each fact, and a column for each of a few things that have the same facts.

    It is narrower than one with a row for each thing: a page of the UI shows some 35 characters beside the key.
    """
    names = dict.fromkeys(name for facts in columns.values() for name in facts)
    return _table(
        [{"": name, **{title: str(facts.get(name, "")) for title, facts in columns.items()}} for name in names]
    )


def table_of_ends(records: Sequence[Mapping[str, Value]]) -> dg.TableMetadataValue:
    """Return a table of sorted records that leaves out those in the middle, and says how many; at least one."""
    half, left_out = MAX_TABLE_ROWS // 2, len(records) - MAX_TABLE_ROWS
    if left_out <= 0:
        return table(records)
    return _table([*records[:half], _gap(records[0], f"… {left_out} more …"), *records[-half:]])


def rounded(value: float, digits: int = 4) -> float | str:
    """Return a value rounded; a text for one that is infinite or no number, which neither JSON nor the UI can hold."""
    return round(float(value), digits) if math.isfinite(value) else DIVERGED


def named(names: Sequence[str], most: int) -> str:
    """Return the first of some names as a sentence lists them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _gap(record: Mapping[str, Value], text: str) -> dict[str, Value]:
    """Return a record that stands for others: a text in its first column."""
    filled: dict[str, Value] = dict.fromkeys(record, "…")
    return {**filled, next(iter(record)): text}


def _table(records: Sequence[Mapping[str, Value]]) -> dg.TableMetadataValue:
    columns = [dg.TableColumn(name, _column_type([record[name] for record in records])) for name in records[0]]
    return dg.TableMetadataValue([dg.TableRecord(dict(record)) for record in records], dg.TableSchema(columns=columns))


def _column_type(values: Sequence[Value]) -> str:
    kinds = {type(value) for value in values}
    return {bool: "bool", int: "int", float: "float"}.get(kinds.pop(), "string") if len(kinds) == 1 else "string"
