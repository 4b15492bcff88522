"""The Spark session of these tests."""

import pytest

from smalti.spark.session import SparkOptions, build_session


@pytest.fixture(scope="session")
def spark():
    """Two cores; of a process that has one, the session that it has."""
    session = build_session(SparkOptions(master="local[2,2]", app_name="smalti-tests", driver_memory="1g"))
    yield session
    session.stop()
