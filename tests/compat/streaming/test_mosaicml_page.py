"""docs/mosaicml.md: its files are saved and its commands run, in their order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.torch]

PAGE = (Path(__file__).parents[3] / "docs/mosaicml.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
PRINTED = """\
stopped after 320 samples
704 samples were left; 1024 in all, from smalti.compat.streaming
smalti.compat.streaming
0.13.0 1024
"""


def run(command, folder):
    """Run a command of the page; the `python` of PATH is that of the tests."""
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly  # beside programs that run unmodified in `test_programs.py`
def test_the_page_runs_twice_as_it_is_written(tmp_path):
    printed = ""
    for kind, text in 2 * BLOCKS:
        if kind == "python":
            name = re.match(r"# (\w+\.py)\n", text)[1]
            (tmp_path / name).write_text(text)
        elif kind == "sh":
            printed += run(["bash", "-e", "-c", text], tmp_path)
        else:
            assert kind == "diff"
    assert printed == 2 * PRINTED
