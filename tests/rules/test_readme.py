"""README's promises: its code runs, its commands exist."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@pytest.fixture
def fresh_shell(tmp_path):
    """The environment of a shell in which nothing is activated: the first `python3` is one without our packages."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    other.chmod(0o755)
    folders = os.environ["PATH"].split(os.pathsep)
    path = [str(other.parent), *(folder for folder in folders if folder != str(Path(sys.executable).parent))]
    ours = {"VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, "PATH": os.pathsep.join(path)}


def draw_photos(folder, each):
    """Write so many small photos of each of two classes."""
    for name in ("daisy", "rose"):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            Image.new("RGB", (40, 30), (number, 0, 0)).save(folder / name / f"{number}.jpg")


def activated():
    """Return the variables of a shell in which the environment of the tests is activated."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


@pytest.mark.slow
def test_the_commands_after_the_installation_lead_from_photos_to_a_batch(tmp_path):
    draw_photos(tmp_path / "photos", each=8)
    install, *commands = README.split("## Quick start")[1].split("```")[1].splitlines()[1:]
    assert install.startswith("pip install")
    for command in commands:
        done = subprocess.run(
            shlex.split(command), cwd=tmp_path, env=activated(), capture_output=True, text=True,
            timeout=500, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"tensor\(\[([01], ){7}[01]\]\)\n", done.stdout)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_quick_start_runs_as_it_is_printed_without_an_activated_environment_and_again(tmp_path, fresh_shell, times):
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    script = tmp_path / "quick_start.py"
    script.write_text(code.replace("/tmp/numbers", str(tmp_path / "numbers")))
    program = f"import runpy\nfor _ in range({times}): runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500, env=fresh_shell, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[::3]] == [["1", "1024"], ["2", "1024"]][:times]
    assert lines[1::3] == ["672 samples were left of the epoch"] * times
    assert [line.count("VersionInfo(version=") for line in lines[2::3]] == [1, 2][:times]


@pytest.mark.slow
def test_the_example_without_spark_runs_twice_as_it_is_printed(tmp_path):
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[1]
    script = tmp_path / "example.py"
    script.write_text(code.replace("/tmp/tokens", str(tmp_path / "tokens")))
    twice = f"import runpy\nfor _ in range(2): runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", twice], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([100, 128]) 7\n" * 2


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.process
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_training_runs_on_the_set_that_the_readme_makes_and_again(tmp_path, times):
    draw_photos(tmp_path / "photos", each=20)
    [convert] = re.findall(r"`(smalti convert photos flowers [^`]*)`", README)
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[2]
    (tmp_path / "train.py").write_text(code.replace("/tmp/run", str(tmp_path / "run")))
    said = [
        subprocess.run(
            command, cwd=tmp_path, env=activated(), capture_output=True, text=True, timeout=500, check=True
        ).stdout.splitlines()[-1]
        for command in (shlex.split(convert), *[[sys.executable, "train.py"]] * times)
    ]
    assert said[0].startswith("version 1: 40 rows")
    assert re.fullmatch(r"5 steps, accuracy [\d.]+ in .*/run/model", said[1])
    assert said[1:] == [said[1]] * times


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


def test_the_readme_compares_in_ten_rows_and_shows_one_chart():
    comparison = README.split("## Comparison")[1].split("\n## ")[0]
    rows = [line for line in comparison.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 10
    assert {row.count("|") for row in rows} == {8}
    assert README.count("docs/images/chart-") == 1
