"""`storage_reachable`, executed alone, by its job and beside an asset."""

from pathlib import Path

import dagster as dg

from smalti_dagster import build_definitions
from smalti_dagster.checks.storage import storage_check
from smalti_dagster.jobs import build_storage_job
from smalti_dagster.resources.storage import LocalStorage
from tests.code_location.declared import FLOWERS, define


def run_job(storage: LocalStorage, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = build_storage_job(build_definitions(FLOWERS))
    defs = dg.Definitions.merge(define(FLOWERS, storage=storage), dg.Definitions(jobs=[job]))
    return defs.resolve_job_def("storage_reachable_job").execute_in_process(instance=instance)


def test_the_job_makes_nothing_and_says_that_the_storage_can_be_used(
    instance: dg.DagsterInstance, storage: LocalStorage
) -> None:
    done = run_job(storage, instance)
    (check,) = done.get_asset_check_evaluations()
    assert check.asset_check_key == storage_check(FLOWERS)
    assert check.passed
    assert check.metadata["stage"].value == "local"
    assert not done.get_asset_materialization_events()
    assert [path for path in Path(storage.root).rglob("*") if path.is_file()] == []


def test_a_place_that_cannot_be_made_is_named_with_the_step_that_failed(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    (check,) = run_job(LocalStorage(root=str(tmp_path / "file")), instance).get_asset_check_evaluations()
    assert not check.passed
    first, *others = check.metadata["problems"].value
    assert str(tmp_path / "file" / "flowers" / "probe") in first
    assert ": create: " in first
    assert str(tmp_path / "file" / "flowers" / "shards") in others[-1]


def test_no_other_job_executes_it_and_none_leaves_out_a_check_of_what_it_makes(storage: LocalStorage) -> None:
    job = build_storage_job(build_definitions(FLOWERS))
    defs = dg.Definitions.merge(define(FLOWERS, storage=storage), dg.Definitions(jobs=[job]))
    steps = {
        name: sorted(node.name for node in defs.resolve_job_def(f"flowers_{name}_job").nodes)
        for name in ("reshard", "everything", "observe")
    }
    data = "flowers__data"
    assert steps == {"reshard": [data], "everything": [data, "flowers__model"], "observe": ["flowers__source"]}
    assert [key.name for key in defs.resolve_asset_graph().get(FLOWERS.key("raw")).check_keys] == [
        "every_class_can_be_split"
    ]
    (step,) = (node.name for node in defs.resolve_job_def("storage_reachable_job").nodes)
    assert step == "flowers__source_storage_reachable"
