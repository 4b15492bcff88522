"""The code location as Dagster sees it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipelines.home import REPOSITORY
from smalti_dagster.declaration import Automation, Notify
from tests.code_location.declared import declare, define
from tests.code_location.shipped import defs

SNAPSHOT = Path(__file__).with_name("definitions.json")
FIELDS = {
    "raw": {"source", "generate_options"},
    "prepared": {
        "image_size", "quality", "validation_fraction", "test_fraction", "fixed_splits", "on_bad_image",
        "max_bad_share", "seed",
    },
    "shards": {"compression", "hashes", "size_limit", "rewrite", "accept_removed", "max_row_loss"},
    "model": {
        "version", "digest", "model", "task_options", "weights", "freeze", "epochs", "batch_size",
        "micro_batches", "optimizer", "optimizer_options", "learning_rate", "schedule", "warmup", "weight_decay",
        "milestones", "milestone_factor", "clip_norm", "precision", "channels_last", "log_every", "seed",
        "affinity", "num_workers", "checkpoint_every", "cache_limit", "launcher", "num_processes", "tensorboard",
        "mlflow", "mlflow_experiment", "best_of_study", "max_restarts", "streams", "batching", "eval_data",
        "eval_every", "max_steps", "patience", "keep", "compile",
    },
}  # fmt: skip


def describe(found: dg.Definitions) -> dict[str, Any]:
    """Everything about definitions that a change should not alter unnoticed, as JSON."""
    graph, repository = found.resolve_asset_graph(), found.get_repository_def()
    return {
        "assets": {
            node.key.to_user_string(): {
                "after": sorted(key.to_user_string() for key in node.parent_keys),
                "group": node.group_name,
                "kinds": sorted(node.kinds),
                "pools": sorted(node.pools or []),
                "tags": {name: value for name, value in sorted(node.tags.items()) if "/" not in name},
                "owners": sorted(node.owners),
                "code version": node.code_version,
                "overdue after": node.freshness_policy.fail_window.to_timedelta().total_seconds() / 3600
                if node.freshness_policy is not None
                else None,
                "checks": {
                    key.name: "blocking" if graph.get_check_spec(key).blocking else "warning"
                    for key in sorted(node.check_keys, key=lambda key: key.name)
                },
            }
            for node in sorted((graph.get(key) for key in graph.get_all_asset_keys()), key=lambda node: node.key)
        },
        "jobs": {
            job.name: {
                "assets": sorted(key.to_user_string() for key in job.asset_layer.executable_asset_keys),
                "tags": dict(sorted(job.tags.items())),
                "run tags": dict(sorted(job.run_tags.items())),
            }
            for job in sorted(repository.get_all_jobs(), key=lambda job: job.name)
            if not job.name.startswith("__")
        },
        "schedules": {
            each.name: {
                "cron": each.cron_schedule,
                "job": each.job_name,
                "status": each.default_status.value,
                "tags": dict(each.tags),
            }
            for each in sorted(repository.schedule_defs, key=lambda each: each.name)
        },
        "sensors": {
            each.name: {
                "seconds": each.minimum_interval_seconds,
                "job": each.job_name if each.targets else None,
                "status": each.default_status.value,
                "tags": dict(each.tags),
            }
            for each in sorted(repository.sensor_defs, key=lambda each: each.name)
            if not each.name.startswith("default_automation")
        },
        "resources": sorted(repository.get_top_level_resources()),
    }


def test_the_definitions_are_those_of_the_snapshot() -> None:
    """After a change that is meant: SMALTI_UPDATE_SNAPSHOT=1."""
    text = json.dumps(describe(defs), indent=1) + "\n"
    if os.environ.get("SMALTI_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(text)
    assert json.loads(text) == json.loads(SNAPSHOT.read_text())


def test_tags_and_owners_of_a_declaration_are_those_of_all_that_belongs_to_it() -> None:
    """By them the UI can be filtered; runs have the tags by which they are found, and no others."""
    notify = Notify(email=["vision@example.com"])
    declared = declare(owners=["team:vision"], tags={"team": "vision"}, automation=Automation(notify=notify))
    repository = define(declared).get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    everything: list[Any] = [*jobs, *repository.schedule_defs, *repository.sensor_defs]
    assert len(everything) == 9
    for each in everything:
        assert {"data_set": "flowers", "team": "vision"}.items() <= dict(each.tags).items(), each.name
        assert each.owners == ["team:vision"], each.name
    assert {frozenset(job.run_tags) for job in jobs} == {frozenset({"smalti/data_set", "smalti/declaration"})}


def test_everything_that_is_defined_can_be_loaded() -> None:
    dg.Definitions.validate_loadable(defs)


@pytest.mark.parametrize("stage", FIELDS)
def test_the_launchpad_shows_every_choice_and_needs_none(stage: str) -> None:
    config = config_of("flowers_everything_job", "flowers", stage)
    assert set(config.config_type.fields) == FIELDS[stage]
    assert not config.is_required


def config_of(job: str, name: str, stage: str) -> Any:
    schema = defs.resolve_job_def(job).run_config_schema.config_type.fields["ops"]  # type: ignore[attr-defined]
    op = "model" if stage == "model" else "data"
    config = schema.config_type.fields[f"{name}__{op}"].config_type.fields["config"]
    return config if stage == "model" else config.config_type.fields[stage]


def test_the_launchpad_s_defaults_are_those_of_the_declaration() -> None:
    fields = config_of("flowers_everything_job", "flowers", "model").config_type.fields
    assert (fields["epochs"].default_value, fields["model"].default_value) == (30, "mobilenet_v2")
    fields = config_of("tokens_reshard_job", "tokens", "shards").config_type.fields
    assert fields["compression"].default_value == "zstd"


def test_a_wrong_choice_is_refused_before_anything_runs() -> None:
    job = defs.resolve_job_def("flowers_everything_job")
    wrong = {"ops": {"flowers__data": {"config": {"prepared": {"on_bad_image": "ignore"}}}}}
    with pytest.raises(dg.DagsterInvalidConfigError, match="on_bad_image"):
        dg.validate_run_config(job, wrong)


def run_tool(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}
    environment.pop("SMALTI_STAGE", None)
    tool = Path(sys.executable).with_name(arguments[0])
    return subprocess.run(
        [str(tool), *arguments[1:]],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.process
def test_workspace_yaml_loads_as_dagster_loads_it(tmp_path: Path) -> None:
    done = run_tool("dagster", "definitions", "validate", "-w", "workspace.yaml", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Validation successful for code location smalti" in done.stdout + done.stderr


@pytest.mark.nightly  # the test before loads it by `dagster`; a project with `dg`: tests/packages
@pytest.mark.slow
@pytest.mark.process
def test_dg_finds_the_code_location_too(tmp_path: Path) -> None:
    done = run_tool("dg", "check", "defs", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All definitions loaded successfully" in done.stdout + done.stderr


@pytest.mark.nightly  # tests/packages scaffolds one by `dg`
@pytest.mark.slow
@pytest.mark.process
def test_dg_validates_the_declarations_and_knows_their_component(tmp_path: Path) -> None:
    done = run_tool("dg", "check", "yaml", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_tool("dg", "list", "components", "--json", home=tmp_path)
    assert "smalti_dagster.DataSet" in done.stdout, done.stdout + done.stderr


LOAD = """
import json, sys, time
from pathlib import Path
import dagster as dg
from smalti_dagster import data_set
from pipelines import definitions
definitions.defs()  # the shipped sets: what each location imports once


def load(*found):
    begin = time.process_time()  # whatever else this machine does
    defs = dg.Definitions.merge(*(each() for each in found), definitions.deployment())
    dg.Definitions.validate_loadable(defs)
    seconds = time.process_time() - begin
    heavy = [name for name in ("torch", "pyspark", "botocore", "boto3", "google.cloud.storage", "azure.storage.blob",
                               "databricks.sdk", "pandas", "transformers") if name in sys.modules]
    return {"seconds": seconds, "heavy": heavy, "assets": len(defs.resolve_asset_graph().get_all_asset_keys())}


none = load()
twenty = load(lambda: dg.load_from_defs_folder(path_within_project=Path(sys.argv[1])))
print(json.dumps([none, twenty]))
"""
ROWS = """type: smalti_dagster.DataSet
attributes:
  name: set{number}
  source: {{table: lake.table{number}}}
"""
IMAGES = """type: smalti_dagster.DataSet
attributes:
  name: set{number}
  source: {{manifest: s3://bucket/set{number}/labels.csv}}
  train: {{epochs: {number}}}
"""


@pytest.mark.nightly  # it compares times
@pytest.mark.slow
@pytest.mark.process
def test_twenty_declared_sets_load_in_three_seconds_more_than_none_and_import_nothing_heavy(tmp_path: Path) -> None:
    """Every step process, the daemon and the webserver's code server pay for what is imported here."""
    root = tmp_path / "project"
    (root / "twenty" / "defs").mkdir(parents=True)
    for module in ("twenty", "twenty/defs"):
        (root / module / "__init__.py").touch()
    (root / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "twenty"\n'
        'defs_module = "twenty.defs"\nregistry_modules = ["smalti_dagster.data_set"]\n'
    )
    for number in range(1, 21):
        folder = root / "twenty" / "defs" / f"set{number}"
        folder.mkdir()
        (folder / "defs.yaml").write_text((ROWS if number % 2 else IMAGES).format(number=number))
    none, twenty = load(root / "twenty")
    assert (none["assets"], twenty["assets"]) == (0, 10 * 3 + 10 * 6)
    assert none["heavy"] == twenty["heavy"] == []
    assert twenty["seconds"] - none["seconds"] < 3


def load(project: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(project)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{project.parent}:{REPOSITORY / 'src'}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
