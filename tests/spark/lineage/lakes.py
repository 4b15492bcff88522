"""Real tables of Delta and Iceberg, written without a JVM by delta-rs and PyIceberg."""

import os
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

import pytest


def lake(name):
    """Import the library of this name; skip the test if it is not installed, except in CI."""
    if find_spec(name) is None and not os.environ.get("CI"):
        pytest.skip(f"needs {name}")
    return import_module(name)


@contextmanager
def iceberg_catalog(folder):
    """Return a catalog of tables below a folder, with the database `db`."""
    lake("pyiceberg")
    catalog = import_module("pyiceberg.catalog.sql").SqlCatalog(
        "lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
    )
    catalog.create_namespace("db")
    try:
        yield catalog
    finally:
        catalog.engine.dispose()
