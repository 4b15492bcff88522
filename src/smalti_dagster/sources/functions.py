"""Functions of the user that a declaration names as `module:function`: their import, their digest, their first rows."""

import hashlib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import dagster as dg

from smalti.inspection.distributions import shortened
from smalti.spark.rows import first_transformed, ship_function
from smalti.writer.tables.transform import as_transform
from smalti_dagster.reports.tables import Value

SparkSession = Any  # Dagster resolves annotations when it loads, and pyspark is not to be imported then
DataFrame = Any

_SHOWN_ROWS = 8
_SHOWN_CHARACTERS = 80


def load_function(path: str) -> Callable[..., Any]:
    """Return the function at `module:function`.

    Raises:
        dg.Failure: there is no such module or function.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise dg.Failure(f"cannot import {path}, as the declaration says: {error}", allow_retries=False) from error
    return function  # type: ignore[no-any-return]


def load_for_tasks(session: SparkSession, path: str) -> Callable[..., Any]:
    """Return the function at `module:function`, which executors can then run without its module.

    Raises:
        dg.Failure: there is no such module or function.
    """
    function = load_function(path)
    ship_function(session, function)
    return function


def function_digest(path: str) -> str:
    """Return a digest of a function's name and of the source of its module: another one when the code changes."""
    module = inspect.getmodule(load_function(path))
    try:
        code = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):  # compiled
        code = ""
    return hashlib.sha256(f"{path}\0{code}".encode()).hexdigest()


def preview_function(frame: DataFrame, path: str) -> tuple[dg.TableSchema, list[dict[str, Value]]]:
    """Return the columns that a function gives, and its first rows, shortened; runs it on a few rows in this process.

    Raises:
        SchemaError: it gave no rows.
        SmaltiError: it failed, or gave something else than batches.
    """
    first = first_transformed(frame, as_transform(load_function(path)), path)
    schema = dg.TableSchema(columns=[dg.TableColumn(field.name, str(field.type)) for field in first.schema])
    rows = first[:_SHOWN_ROWS].to_pylist()
    return schema, [{name: shortened(str(value), _SHOWN_CHARACTERS) for name, value in row.items()} for row in rows]
