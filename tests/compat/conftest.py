"""The Spark session of these tests."""

import pytest


@pytest.fixture(scope="module")
def spark():
    """Two cores; a task that fails is tried once more."""
    from tests.spark.own_session import own_session  # `make test-tf` has no Spark

    with own_session() as session:
        yield session
