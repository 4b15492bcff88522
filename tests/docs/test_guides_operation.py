"""docs/slurm.md, kubernetes.md and production.md: their programs run, and their files of settings are valid."""

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import jsonschema
import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config

from pipelines.home import REPOSITORY
from smalti.cli import main
from smalti.torch.train import launch
from smalti.torch.train.run.events import read_lines
from smalti_dagster import DataSet, build_definitions
from tests.docs.guide import Guide, check_all_shell_blocks, torchrun_options

TOOLS = Path(sys.executable).parent
SYSTEMD = REPOSITORY / "deploy" / "systemd"
SRUN = """#!/bin/bash
# Starts the command as one task on each node, as Slurm does; once there is a checkpoint, a job that is to be preempted
# gets SIGTERM.
while [[ $1 == --* ]]; do
  if [[ $1 == --output=* ]]; then exec > "${1#*=}" 2>&1; fi
  shift
done
for _ in $(seq "$SLURM_JOB_NUM_NODES"); do "$@" & done
if [ -n "$PREEMPT" ]; then
  until compgen -G "run-$SLURM_JOB_ID/checkpoints/step-*" > /dev/null; do sleep 0.05; done
  kill -TERM $(jobs -p)
fi
status=0
for task in $(jobs -p); do wait "$task" || status=1; done
exit $status
"""
SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> scontrol.log; fi
"""


# ---------------------------------------------------------------------------------------------------------- Slurm


@pytest.fixture
def cluster(tmp_path):
    """The files of the page, and programs in place of Slurm's; the training lasts until it is preempted."""
    guide = Guide("slurm.md", **{"/local/$USER": "local", ":29500": f":{20000 + os.getpid() % 20000}"})
    guide.write_files(tmp_path)
    training = Guide("training.md")
    for name, mark in {"write_digits.py": "MDSWriter(", "train.py": "def train_digits("}.items():
        (tmp_path / name).write_text(training.block("python", mark))
    (tmp_path / ".venv").symlink_to(TOOLS.parent)
    (tmp_path / "bin").mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    run([sys.executable, "write_digits.py"], tmp_path)
    return tmp_path


def run(command, folder, **variables):
    """Run a command as a job of Slurm runs it; return its exit status and output."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node-[0-1]",
        **variables,
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.torch
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_job_that_is_preempted_is_queued_again_and_ends_on_one_node(cluster, monkeypatch, capsys, num_nodes):
    """On another number of ranks by default: tests/torch/train has it for every launcher."""
    program = (cluster / "train.py").read_text()
    assert '"epochs": 5' in program
    (cluster / "train.py").write_text(program.replace('"epochs": 5', '"epochs": 1000'))
    status, output = run(["bash", "train.sbatch"], cluster, SLURM_JOB_NUM_NODES=str(num_nodes), PREEMPT="1")
    assert status == 1, output
    assert "stopped by SIGTERM" in (cluster / "digits-4711-0.log").read_text()
    assert (cluster / "scontrol.log").read_text() == "requeue 4711\n"
    reports = [line for line in read_lines(cluster / "run-4711" / "metrics.jsonl") if line["event"] == "report"]
    monkeypatch.chdir(cluster)
    names = {"__name__": "train"}
    exec(program, names)
    options = {"data": "digits", "run_dir": "run-4711", "log_samples": True, "device": "cpu"}
    launch(names["train_digits"], {"learning_rate": 1e-3, "epochs": reports[-1]["step"] // 21 + 1}, **options)
    starts = [line for line in read_lines(cluster / "run-4711" / "metrics.jsonl") if line["event"] == "start"]
    assert [start["num_ranks"] for start in starts] == [num_nodes, 1]
    assert starts[1]["step"] >= 20
    for command, words in (("plan", "samples in"), ("ledger", "all good")):
        [line] = [line for line, _ in Guide("slurm.md").commands() if line.startswith(f"smalti {command}")]
        assert main(line.split()[1:]) == 0
        assert words in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.process
def test_a_job_that_ends_by_itself_is_not_queued_again(cluster):
    status, output = run(["bash", "train.sbatch"], cluster, SLURM_JOB_NUM_NODES="1")
    log = (cluster / "digits-4711-0.log").read_text()
    assert (status, log.count("{'steps': 105}")) == (0, 1), output + log
    assert not (cluster / "scontrol.log").exists()


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.process
def test_slurm_starts_the_ranks_itself_with_the_variables_of_the_page(cluster):
    script = Guide("slurm.md").block("bash", "RANK=$SLURM_PROCID").replace("29500", str(20000 + os.getpid() % 20000))
    tasks = '#!/bin/bash\nfor rank in 0 1; do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & done\nwait -n && wait -n\n'
    (cluster / "bin" / "srun").write_text(tasks)
    path = os.pathsep.join([str(cluster / "bin"), str(TOOLS), os.environ["PATH"]])  # as in an activated environment
    status, output = run(["bash", "-c", script], cluster, SLURM_NTASKS="2", SLURM_NTASKS_PER_NODE="2", PATH=path)
    assert (status, output.count("{'steps': 105}")) == (0, 2), output
    [start] = [line for line in read_lines(cluster / "run-slurm" / "metrics.jsonl") if line["event"] == "start"]
    assert start["num_ranks"] == 2


def test_the_job_script_of_slurm_gives_torchrun_options_that_it_has():
    guide = Guide("slurm.md")
    check_all_shell_blocks(guide)
    script = guide.block("bash", "#SBATCH")
    [command] = re.findall(r"bin/torchrun (.*?)\"\$@\"", script.replace("\\\n", ""))
    given = torchrun_options(re.sub(r'["{}]|\$', "", command).replace("SLURM_GPUS_ON_NODE:-1", "1").split())
    assert given.training_script == "train.py"
    shutdown = int(re.findall(r"SHUTDOWN_TIMEOUT=(\d+)", script)[0])
    signal = int(re.findall(r"--signal=TERM@(\d+)", script)[0])
    assert 30 < shutdown < signal


# ----------------------------------------------------------------------------------------------------- Kubernetes


def documents(kind):
    """Return the documents of the page that have a kind of object."""
    texts = [each for text in Guide("kubernetes.md").blocks("yaml") for each in yaml.safe_load_all(text)]
    return [each for each in texts if each.get("kind") == kind]


def test_the_pods_of_a_job_find_the_first_one_and_have_time_room_and_memory():
    [service], [job] = documents("Service"), documents("Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = torchrun_options(container["args"])
    assert given.rdzv_endpoint == f"{job['metadata']['name']}-0.{pod['subdomain']}:29500"
    assert int(given.nnodes) == spec["completions"] == spec["parallelism"] == 4
    assert given.nproc_per_node == container["resources"]["limits"]["nvidia.com/gpu"]
    assert service["metadata"]["name"] == pod["subdomain"]
    selector = {"job-name": job["metadata"]["name"]}
    assert service["spec"] == {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each["emptyDir"] for each in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["medium"] == "Memory"
    assert variables["XDG_CACHE_HOME"] == variables["TMPDIR"] == "/cache"
    assert "/cache" in mounts


def test_the_training_program_has_the_arguments_that_the_manifests_give():
    program = Guide("training.md").block("python", "def train_digits(")
    options = set(re.findall(r'add_argument\("(--[\w-]+)"', program))
    texts = "\n".join(Guide("kubernetes.md").blocks("yaml"))
    assert set(re.findall(r"(--data|--run-dir)=s3://", texts)) == {"--data", "--run-dir"} <= options


# ----------------------------------------------------------------------------------------------------- production


@pytest.fixture
def production():
    return Guide("production.md")


def test_the_settings_for_a_managed_postgresql_pass_dagster_s_schema(production, tmp_path):
    shipped = yaml.safe_load((REPOSITORY / "deploy" / "postgres" / "dagster.yaml").read_text())
    [added] = re.findall(r"add `(params: .*?)` to `postgres_db` in `dagster.yaml`", production.text)
    shipped["storage"]["postgres"]["postgres_db"].update(yaml.safe_load(added))
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(shipped))
    dagster_instance_config(str(tmp_path))
    assert shipped["storage"]["postgres"]["postgres_db"]["params"] == {"sslmode": "require"}


def test_the_override_of_the_containers_passes_the_schema_of_compose(production):
    schema = json.loads((REPOSITORY / "tests" / "code_location" / "compose-spec.json").read_text())
    override = yaml.safe_load(production.block("yaml", "# compose.override.yaml"))
    jsonschema.Draft202012Validator(schema).validate(override)
    shipped = yaml.safe_load((REPOSITORY / "deploy" / "docker" / "compose.yaml").read_text())
    assert override["services"].keys() <= shipped["services"].keys()


def test_the_declared_example_has_the_schedule_and_sensors_that_the_commands_start(production, monkeypatch):
    declared = yaml.safe_load(production.block("yaml", "# pipelines/defs/scans/defs.yaml"))
    assert declared["type"] == "smalti_dagster.DataSet"
    monkeypatch.setenv("VISION_SLACK", "https://hooks.slack.com/services/x")
    found = build_definitions(DataSet.resolve_from_yaml(yaml.safe_dump(declared["attributes"])))
    names = {each.name for each in [*found.schedules, *found.sensors]}
    started = re.findall(r"^dagster (schedule|sensor) start \S+ \S+ (scans_\w+)$", production.text, re.MULTILINE)
    assert len(started) == 3
    assert all(name in names and name.endswith(kind) for kind, name in started)
    [schedule] = found.schedules
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 3 * * *", "Europe/Berlin")


def test_the_services_execute_what_the_image_executes(production):
    """Each unit names a program of the environment; the workspace leads to the port of the code server."""
    check_all_shell_blocks(production)
    commands = {}
    for path in SYSTEMD.glob("*.service"):
        assert path.name in production.text
        unit = configparser.ConfigParser()
        unit.optionxform = str
        unit.read(path, encoding="utf-8")
        assert (unit["Service"]["User"], unit["Service"]["Restart"]) == ("smalti", "always")
        program, _, arguments = unit["Service"]["ExecStart"].partition(" ")
        assert (TOOLS / Path(program).name).exists()
        commands[Path(program).name] = arguments
    assert commands == {
        "dagster": "api grpc -h 127.0.0.1 -p 4000 -m pipelines.definitions -a defs",
        "dagster-daemon": "run -w /opt/smalti/workspace.yaml",
        "dagster-webserver": "-h 127.0.0.1 -p 3000 -w /opt/smalti/workspace.yaml",
    }
    dockerfile = (REPOSITORY / "deploy" / "docker" / "Dockerfile").read_text()
    in_image = ["dagster", *commands["dagster"].replace("127.0.0.1", "0.0.0.0").split()]
    assert f"CMD {json.dumps(in_image)}\n" in dockerfile
    [location] = yaml.safe_load((SYSTEMD / "workspace.yaml").read_text())["load_from"]
    assert location == {"grpc_server": {"host": "127.0.0.1", "port": 4000, "location_name": "smalti"}}


def test_the_variables_of_the_services_are_those_that_the_settings_read(production):
    given = set(re.findall(r"^(\w+)=", (SYSTEMD / "environment").read_text(), re.MULTILINE))
    settings = (REPOSITORY / "deploy" / "postgres" / "dagster.yaml").read_text()
    assert set(re.findall(r"env: (\w+)", settings)) <= given
    assert {"DAGSTER_HOME", "SMALTI_STAGE", "SMALTI_ROOT"} <= given
    extras = set(re.findall(r"EXTRAS=(\S+)", production.text)[0].split(","))
    assert extras <= set(re.findall(r"^(\w+) = \[", (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE))
