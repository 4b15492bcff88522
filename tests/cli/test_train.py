"""`smalti train CONFIG.yaml`: real runs, of one and of two processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smalti.cli import main
from smalti.writer import MDSWriter

EXAMPLE = Path(__file__).parents[2] / "examples" / "tabular_regression.py"
CONFIG = """
data: {data}
run_dir: {run}
task: tabular_regression:TabularRegression
task_options: {{features: [a], target: target}}
train_split: null
eval_split: null
batch_size: 8
storage_options: {{}}
"""


@pytest.fixture
def config(tmp_path):
    with MDSWriter(out=str(tmp_path / "set"), columns={"a": "float64", "target": "float64"}) as writer:
        for number in range(32):
            writer.write({"a": number / 32, "target": number / 16})
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG.format(data=tmp_path / "set", run=tmp_path / "run"))
    return str(tmp_path / "c.yaml")


def test_a_dry_run_prints_the_configuration_without_secrets(config, tmp_path, capsys):
    words = ["train", config, "--set", "data=s3://bucket/set", "--storage-option", "secret=hidden", "--dry-run"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["data"], told["batch_size"], told["storage_options"]) == ("s3://bucket/set", 8, {"secret": "***"})
    assert main(words) == 0
    assert "storage_options:\n  secret: '***'\n" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_without_torch_the_command_names_the_extra_of_training(config, tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')")
    code = "from smalti.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", config],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stderr.splitlines() == [
        "smalti: train needs the package torch, which is not installed: pip install 'smalti[train]'",
        "Help: https://github.com/smalti/smalti/blob/main/docs/troubleshooting.md#missingdependency",
    ]
    assert done.returncode == 1


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.process
@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_the_launcher_of_the_configuration_trains_a_task_whose_module_is_beside_the_file(
    config, tmp_path, capsys, launcher
):
    processes = 1 if launcher == "inline" else 2
    words = ["--set", f"launcher={launcher}", "--set", f"num_processes={processes}", "--set", "epochs=2"]
    assert main(["train", config, *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["epochs"], told["steps"], told["model_dir"]) == (2, 8, str(tmp_path / "run" / "model"))
    assert main(["train", config, *words]) == 0
    assert "8 in 2 epochs" in capsys.readouterr().out, "a finished run tells its result again"
