"""docs/training.md: its files and commands work as they stand there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from smalti.torch.train import launch, read_sample_order
from smalti.torch.train.config import RunConfig
from smalti.torch.train.run.events import read_lines

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

PAGE = (Path(__file__).resolve().parents[4] / "docs/training.md").read_text()


def block(kind: str, mark: str) -> str:
    """Return the block of the page that contains a text; others write blocks of their own there."""
    [found] = [text for text in re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) if mark in text]
    return found


@pytest.fixture
def folder(tmp_path):
    """A folder with the files of the page, and the set that the first of them writes."""
    for name, mark in {"write_digits.py": "MDSWriter(", "train.py": "def train_digits("}.items():
        (tmp_path / name).write_text(block("python", mark))
    run(["python", "write_digits.py"], tmp_path)
    return tmp_path


def run(command, folder):
    """Run a command of the page; the `python` and `torchrun` of PATH are those of the tests."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ranks_of(run_dir: Path) -> int:
    return read_lines(run_dir / "metrics.jsonl")[0]["num_ranks"]


def test_the_script_runs_in_this_process(folder):
    """21 steps of 96 samples are an epoch of 2,000."""
    names = {"__name__": "train"}
    exec((folder / "train.py").read_text(), names)
    options = {"data": str(folder / "digits"), "run_dir": str(folder / "run-1"), "log_samples": True}
    assert launch(names["train_digits"], {"learning_rate": 1e-3, "epochs": 1}, **options) == {"steps": 21}
    assert sorted(read_sample_order(folder / "run-1")[0]) == list(range(2000))


@pytest.mark.nightly  # beside the script in this process, and ranks that are started in `test_function.py`
def test_the_script_runs_under_torchrun_and_goes_on_in_this_process(folder):
    [command] = [line for line in block("console", "--run-dir run-3").splitlines() if "torchrun" in line]
    assert "{'steps': 105}" in run(command.removeprefix("$ ").split(), folder)
    assert ranks_of(folder / "run-3") == 2
    names = {"__name__": "train"}
    exec((folder / "train.py").read_text(), names)
    options = {"data": str(folder / "digits"), "run_dir": str(folder / "run-3"), "log_samples": True}
    assert launch(names["train_digits"], {"learning_rate": 1e-3, "epochs": 6}, **options) == {"steps": 126}
    assert sorted(read_sample_order(folder / "run-3")[5]) == list(range(2000))


@pytest.mark.nightly
def test_every_command_for_one_machine_prints_the_same(folder):
    commands = [line.removeprefix("$ ").split() for line in block("console", "--run-dir run-3").splitlines()]
    assert [command[:2] for command in commands[:2]] == [["python", "write_digits.py"], ["python", "train.py"]]
    for command in commands[1:]:
        assert "{'steps': 105}" in run(command, folder)
    assert [ranks_of(folder / name) for name in ("run", "run-2", "run-3")] == [1, 2, 2]


def test_the_call_for_spark_has_the_fields_of_a_run():
    called = {}

    def record(function, config, **options):
        called.update(function=function, config=config, run=RunConfig(**options))

    exec(block("python", 'launcher="spark"'), {"launch": record, "train_digits": None})
    assert (called["run"].launcher, called["run"].num_processes) == ("spark", 4)
    assert json.dumps(called["config"])
