"""The converter on Spark Connect, in a process of its own."""

import os
import subprocess
import sys

import pytest

from tests import turns


@pytest.mark.spark
@pytest.mark.slow
def test_a_connect_sessions_dataframe_is_converted_and_an_equal_plan_found_again(tmp_path):
    parent = tmp_path / "parent"
    with turns.spark_connect():
        done = subprocess.run(
            [sys.executable, "-m", "tests.compat.on_connect", str(parent)],
            capture_output=True,
            text=True,
            timeout=180,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            check=False,
        )
    said = done.stdout.splitlines()
    assert said[-3:] == ["30 True torch.float32 [1.0, 2.0]", "False", "True"], done.stderr[-3000:]
    assert list(parent.iterdir()) == []
