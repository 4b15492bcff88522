"""Each example of the API reference that needs Spark gives what it shows."""

import pytest

from tests.docs.examples import EXAMPLES, prepared, run, used_in, workplace  # noqa: F401 - fixtures
from tests.spark.own_session import own_session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.torch]


@pytest.fixture(scope="module")
def spark():
    with own_session() as session:
        yield session


@pytest.mark.parametrize("name", [name for name, text in EXAMPLES.items() if "spark" in used_in(text)])
def test_an_example_gives_what_it_shows(name, workplace, spark):  # noqa: F811
    run(name, EXAMPLES[name], workplace, spark=spark)
