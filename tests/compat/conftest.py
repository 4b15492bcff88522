"""The Spark session of these tests."""

import pytest

from tests.spark.own_session import own_session


@pytest.fixture(scope="module")
def spark():
    """Two cores; a task that fails is tried once more."""
    with own_session() as session:
        yield session
