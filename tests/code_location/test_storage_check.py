"""`storage_reachable`, executed alone, by its job and beside an asset."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from smalti_dagster.checks.storage import storage_check
from smalti_dagster.data_set import build_definitions
from smalti_dagster.declaration import Declaration
from smalti_dagster.jobs import build_storage_job
from smalti_dagster.resources.storage import LocalStorage
from tests.code_location.declared import FLOWERS, define


def run_job(
    storage: LocalStorage, instance: dg.DagsterInstance, declared: Declaration = FLOWERS
) -> dg.ExecuteInProcessResult:
    job = build_storage_job(build_definitions(declared))
    defs = dg.Definitions.merge(define(declared, storage=storage), dg.Definitions(jobs=[job]))
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


ROWS = [  # Spark starts once, by the fixture
    ({"table": "/no/such/table", "format": "parquet"}, "/no/such/table"),
    ({"table": "s3://lake/x.csv", "format": "csv"}, "org.apache.hadoop:hadoop-aws"),
    ({"table": "lake.no_such"}, "no_such"),
    ({"sql": "SELEC 1"}, "Syntax error"),
]


@pytest.mark.parametrize(("source", "said"), ROWS)
def test_a_source_of_rows_that_spark_cannot_read_is_a_problem(
    instance: dg.DagsterInstance, storage: LocalStorage, session: Any, source: dict[str, str], said: str
) -> None:
    declared = Declaration.model_validate({"name": "sales", "source": source})
    (check,) = run_job(storage, instance, declared).get_asset_check_evaluations()
    assert not check.passed
    (problem,) = check.metadata["problems"].value
    assert said in problem
    assert "py4j" not in problem.lower()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"folder": "{root}/no-such"}, "no-such: there is no such folder or file"),
        ({"manifest": "{root}/photos.csv"}, "photos.csv: there is no such folder or file"),
        ({"generate": "no.such:function"}, "cannot import no.such:function"),
    ],
)
def test_a_source_of_images_that_is_not_there_is_a_problem(
    instance: dg.DagsterInstance, storage: LocalStorage, source: dict[str, str], said: str
) -> None:
    named = {form: text.format(root=storage.root) for form, text in source.items()}
    declared = Declaration.model_validate({"name": "photos", "source": named})
    (check,) = run_job(storage, instance, declared).get_asset_check_evaluations()
    assert said in check.metadata["problems"].value[0]
