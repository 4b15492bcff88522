"""The converter on Spark Connect, in a process of its own."""

import pytest

from tests.spark.writing.connect_program import run_on_connect


@pytest.mark.nightly  # beside spark/mds/test_connect.py
@pytest.mark.spark
@pytest.mark.slow
def test_a_connect_sessions_dataframe_is_converted_and_an_equal_plan_found_again(tmp_path):
    parent = tmp_path / "parent"
    said, errors = run_on_connect("tests.compat.on_connect", parent)
    assert said[-3:] == ["30 True torch.float32 [1.0, 2.0]", "False", "True"], errors
    assert list(parent.iterdir()) == []
