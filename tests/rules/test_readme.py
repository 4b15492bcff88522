"""README's promises: its code runs, its commands exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.spark
def test_the_quick_start_runs_as_it_is_printed(tmp_path):
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    script = tmp_path / "quick_start.py"
    script.write_text(code.replace("/tmp/numbers", str(tmp_path / "numbers")))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=180, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    first, left, versions = done.stdout.splitlines()
    assert first.startswith("1 1024 ")
    assert left == "672 samples were left of the epoch"
    assert versions.startswith("[VersionInfo(version=1,")


@pytest.mark.slow
def test_the_example_without_spark_runs_as_it_is_printed(tmp_path):
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[1]
    script = tmp_path / "example.py"
    script.write_text(code.replace("/tmp/tokens", str(tmp_path / "tokens")))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([100, 128]) 7\n"


def test_every_make_command_of_the_readme_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert named <= targets
    assert {"demo", "test", "setup", "ui", "check", "clean"} <= named


def test_the_readme_opens_with_its_two_commands():
    assert README.split("```")[1].splitlines()[1].startswith("make demo")
    assert README.split("```")[1].splitlines()[2].startswith("make test")


def test_ci_runs_the_readmes_test_command():
    assert (ROOT / ".ci/run").read_text().splitlines()[-1] == "make test"


def test_every_page_that_the_readme_links_is_there():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
