"""The code location as Dagster sees it."""

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from assets.preprocessed_images import OnBadImage, PreprocessConfig, name_of
from pipelines.definitions import defs
from pipelines.deployments import REPOSITORY

GRAPH = {
    "raw_images": set(),
    "preprocessed_images": {"raw_images"},
    "mds_shards": {"preprocessed_images"},
    "trained_model": {"mds_shards"},
}
CHECKS = {
    "raw_images": {"every_class_can_be_split"},
    "preprocessed_images": {"few_images_were_left_out"},
    "mds_shards": {"every_row_is_in_the_shards", "hashes_verify", "no_class_vanished"},
    "trained_model": {"accuracy_is_above_chance"},
}


def test_everything_that_is_defined_can_be_loaded() -> None:
    dg.Definitions.validate_loadable(defs)


def test_the_assets_stand_in_the_order_of_the_design() -> None:
    graph = defs.resolve_asset_graph()
    found = {
        key.to_user_string(): {p.to_user_string() for p in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }
    assert found == GRAPH


def test_the_checks_stand_beside_their_assets() -> None:
    found: dict[str, set[str]] = {}
    for key in defs.resolve_asset_graph().asset_check_keys:
        found.setdefault(key.asset_key.to_user_string(), set()).add(key.name)
    assert found == CHECKS


def test_a_failed_check_of_the_shards_stops_the_training() -> None:
    graph = defs.resolve_asset_graph()
    blocking = {key.name for key in graph.asset_check_keys if graph.get_check_spec(key).blocking}
    assert blocking == {"every_row_is_in_the_shards", "hashes_verify", "no_class_vanished"}


def test_the_jobs_run_the_assets_that_their_names_say() -> None:
    assert {
        job: {key.to_user_string() for key in defs.resolve_job_def(job).asset_layer.executable_asset_keys}
        for job in ("reshard_job", "train_job", "everything_job")
    } == {
        "reshard_job": {"raw_images", "preprocessed_images", "mds_shards"},
        "train_job": {"trained_model"},
        "everything_job": set(GRAPH),
    }


def test_the_schedule_and_the_sensors_are_off_until_switched_on() -> None:
    assert defs.resolve_schedule_def("nightly_reshard_schedule").default_status is dg.DefaultScheduleStatus.STOPPED
    for name in ("train_on_new_version_sensor", "reshard_on_new_images_sensor"):
        assert defs.resolve_sensor_def(name).default_status is dg.DefaultSensorStatus.STOPPED


@pytest.mark.parametrize(
    ("asset", "fields"),
    [
        ("raw_images", {"source", "images_per_class", "seed"}),
        ("preprocessed_images", {"image_size", "quality", "validation_fraction", "on_bad_image", "seed"}),
        ("mds_shards", {"compression", "hashes", "size_limit", "rewrite", "accept_removed", "max_row_loss"}),
        (
            "trained_model",
            {
                "version", "digest", "model", "width", "weights", "image_size", "epochs", "batch_size", "learning_rate",
                "weight_decay", "augment", "seed", "num_workers", "checkpoint_every", "cache_limit", "launcher",
                "num_processes",
            },
        ),
    ],
)  # fmt: skip
def test_the_launchpad_shows_every_choice_and_needs_none(asset: str, fields: set[str]) -> None:
    schema = defs.resolve_job_def("everything_job").run_config_schema.config_type.fields["ops"]  # type: ignore[attr-defined]
    config = schema.config_type.fields[asset].config_type.fields["config"]
    assert set(config.config_type.fields) == fields
    assert not config.is_required


def test_a_wrong_choice_is_refused_before_anything_runs() -> None:
    job = defs.resolve_job_def("everything_job")
    wrong = {"ops": {"preprocessed_images": {"config": {"on_bad_image": "ignore"}}}}
    with pytest.raises(dg.DagsterInvalidConfigError, match="on_bad_image"):
        dg.validate_run_config(job, wrong)


def test_the_policy_for_bad_images_is_no_part_of_the_name_of_prepared_rows() -> None:
    strict, lenient = PreprocessConfig(on_bad_image=OnBadImage.fail), PreprocessConfig(on_bad_image=OnBadImage.skip)
    assert name_of("digest", strict) == name_of("digest", lenient)
    assert name_of("digest", strict) != name_of("digest", PreprocessConfig(quality=50))


def run_tool(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}
    environment.pop("SMALTI_DEPLOYMENT", None)
    tool = Path(sys.executable).with_name(arguments[0])
    return subprocess.run(
        [str(tool), *arguments[1:]],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.process
def test_workspace_yaml_loads_as_dagster_loads_it(tmp_path: Path) -> None:
    done = run_tool("dagster", "definitions", "validate", "-w", "workspace.yaml", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Validation successful for code location smalti" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.process
def test_dg_finds_the_code_location_too(tmp_path: Path) -> None:
    done = run_tool("dg", "check", "defs", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All definitions loaded successfully" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.process
def test_loading_the_code_location_imports_neither_torch_nor_pyspark() -> None:
    """Every step process, the daemon and the webserver's code server pay for what is imported here."""
    code = "import sys, pipelines.definitions; print([m for m in ('torch', 'pyspark') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
