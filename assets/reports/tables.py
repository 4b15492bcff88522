"""Tables for Dagster's UI, made from plain values; nothing here knows an asset."""

from collections.abc import Mapping, Sequence

import dagster as dg

MAX_TABLE_ROWS = 30
"""Rows of a table that a page of the UI still shows well; the UI itself shows all of them."""

Value = str | int | float | bool


def table(records: Sequence[Mapping[str, Value]]) -> dg.TableMetadataValue:
    """A table of the records (all with the same columns, at least one) that ends with a count of those left out."""
    rows = [dict(record) for record in records[:MAX_TABLE_ROWS]]
    left_out = len(records) - len(rows)
    columns = [dg.TableColumn(name, _column_type([row[name] for row in rows])) for name in records[0]]
    if left_out:
        last: dict[str, Value] = dict.fromkeys(records[0], "…")
        rows.append({**last, next(iter(last)): f"and {left_out} more"})
        columns = [dg.TableColumn(column.name, "string") for column in columns]
    return dg.TableMetadataValue([dg.TableRecord(row) for row in rows], dg.TableSchema(columns=columns))


def _column_type(values: Sequence[Value]) -> str:
    return {bool: "bool", int: "int", float: "float"}.get(type(values[0]), "string")
