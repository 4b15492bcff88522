"""Output and behaviour of the demo around its run; the run itself is in test_end_to_end."""

import argparse
from pathlib import Path

import dagster as dg
import pytest

from pipelines.demo import explain, main, parse, run_config
from pipelines.faults import describe_fault
from pipelines.home import prepare_home
from pipelines.progress import progress_logger
from smalti.errors import BadImageError, SmaltiError
from smalti_dagster.runs.launcher import cancel_dead_commands
from smalti_dagster.runs.process import process_tags
from tests.code_location.events import dead_process, new_run
from tests.code_location.instances import instance_in_memory
from tests.code_location.shipped import defs


@dg.asset
def first(context: dg.AssetExecutionContext) -> None:
    context.log.info("half of it")
    context.log.debug("not for people")


@dg.asset(deps=[first])
def second() -> None:
    raise BadImageError("3 of 10 files are not usable images")


@dg.asset_check(asset=first)
def all_is_well() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False)


@dg.asset_check(asset=first, blocking=True)
def nothing_is_missing() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, description="2 of 5 are gone")


def run_small(
    lines: list[str], *, selection: str, checks: tuple[dg.AssetChecksDefinition, ...] = (all_is_well,)
) -> None:
    job = dg.define_asset_job("small_job", selection=selection)
    small = dg.Definitions(
        assets=[first, second],
        asset_checks=checks,
        jobs=[job],
        loggers={"progress": progress_logger(["first", "second"], lines.append)},
    )
    with instance_in_memory() as instance:
        small.resolve_job_def("small_job").execute_in_process(
            instance=instance, run_config={"loggers": {"progress": {}}}
        )


@pytest.mark.slow
def test_progress_shows_stages_messages_checks_and_seconds_as_they_come() -> None:
    lines: list[str] = []
    run_small(lines, selection="first")
    assert lines[:2] == ["[1/2] first", "      half of it"]
    assert lines[2].startswith("      done in ")
    assert lines[3:] == ["      check all is well: FAILED"]


def test_a_fault_in_an_asset_becomes_its_own_message() -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Dagster decides what it wraps the error in
        run_small([], selection="second")
    assert describe_fault(caught.value) == "3 of 10 files are not usable images"


def test_a_failed_check_that_stops_the_run_is_named() -> None:
    lines: list[str] = []
    with pytest.raises(Exception) as caught:  # noqa: PT011  Dagster decides
        run_small(lines, selection="*", checks=(nothing_is_missing,))
    assert "nothing_is_missing" in describe_fault(caught.value)
    assert "--replace" not in explain(caught.value)
    assert "give --replace" in explain(RuntimeError("1 blocking asset check failed: no_class_vanished"))
    assert lines[-2:] == ["      check nothing is missing: FAILED", "      2 of 5 are gone"]
    assert "[2/2] second" not in lines


def test_a_fault_is_described_by_the_one_who_speaks_to_a_person() -> None:
    error = RuntimeError("step failed")
    error.__cause__ = SmaltiError("the store at s3://b does not answer")
    error.__cause__.__cause__ = ConnectionResetError("errno 104")
    assert describe_fault(error) == "the store at s3://b does not answer"
    assert describe_fault(dg.Failure("asset x has never been materialised")) == "asset x has never been materialised"
    assert describe_fault(KeyError("x")) == "KeyError: 'x'"


@pytest.mark.parametrize("processes", [1, 2])
def test_the_run_of_the_demo_is_one_that_the_job_accepts(processes: int) -> None:
    options = argparse.Namespace(
        source="photos", images_per_class=10, image_size=32, epochs=1, processes=processes, skip_bad_images=True,
        replace=False,
    )  # fmt: skip
    config = run_config(options)
    job = defs.resolve_job_def("flowers_everything_job")
    dg.validate_run_config(job, {"ops": config["ops"]})
    data = config["ops"]["flowers__data"]["config"]
    assert data["raw"]["source"] == "photos"
    assert (data["prepared"]["on_bad_image"], data["prepared"]["max_bad_share"]) == ("skip", 1.0)
    assert data["shards"] == {"accept_removed": ["*"]}


def test_flowers_that_nobody_asked_for_replace_nothing_unless_told_to() -> None:
    plain, replacing = (run_config(parse(["--source", "", *more])) for more in ([], ["--replace"]))
    assert plain["ops"]["flowers__data"]["config"]["shards"] == {}
    assert replacing["ops"]["flowers__data"]["config"]["shards"] == {"accept_removed": ["*"]}


def test_an_unknown_option_is_a_matter_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--sauce", "photos"])
    assert caught.value.code == 2
    assert "--source" in capsys.readouterr().err


def test_home_gets_settings_once_and_keeps_those_of_its_owner(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "home"
    prepare_home(home)
    settings = home / "dagster.yaml"
    assert "telemetry: {enabled: false}" in settings.read_text()
    with dg.DagsterInstance.from_config(str(home)) as instance:  # Dagster refuses settings that it does not know
        assert instance.global_op_concurrency_default_limit == 1
    settings.write_text("telemetry: {enabled: true}\n")
    prepare_home(home)
    assert settings.read_text() == "telemetry: {enabled: true}\n"


@pytest.mark.slow
def test_a_run_whose_process_was_killed_gives_its_place_back(tmp_path: Path) -> None:
    """Else the next demo would wait for the place for ever."""
    prepare_home(tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance, dead_process() as killed:
        dead, alive, other_host = (new_run(instance, "train") for _ in range(3))
        instance.add_run_tags(dead.run_id, process_tags(dead.run_id, killed))
        instance.add_run_tags(alive.run_id, process_tags(alive.run_id))
        instance.add_run_tags(other_host.run_id, {**process_tags(dead.run_id, killed), "smalti/host": "elsewhere"})
        instance.event_log_storage.initialize_concurrency_limit_to_default("spark")
        claim = instance.event_log_storage.claim_concurrency_slot("spark", dead.run_id, "flowers__data")
        assert claim.is_claimed
        assert cancel_dead_commands(instance) == [dead.run_id]
        assert instance.event_log_storage.claim_concurrency_slot("spark", alive.run_id, "flowers__data").is_claimed
        statuses = {run.run_id: run.status for run in instance.get_runs()}
    assert statuses[dead.run_id] is dg.DagsterRunStatus.CANCELED
    assert statuses[alive.run_id] is statuses[other_host.run_id] is dg.DagsterRunStatus.STARTED


def test_a_source_that_is_not_there_ends_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"DAGSTER_HOME": "dagster", "SMALTI_ROOT": "data", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}.items():
        monkeypatch.setenv(name, value if value == "1" else str(tmp_path / value))
    assert main(["--source", str(tmp_path / "nowhere")]) == 1
    said = capfd.readouterr()
    assert "there is no such folder" in said.err
    assert "Traceback" not in said.out + said.err
