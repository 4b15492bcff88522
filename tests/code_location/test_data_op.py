"""The op of raw data, preprocessed rows and shards: parts of it alone, failed checks, and what is tried again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from smalti_dagster import (
    build_definitions,
    hand_on_images,
    in_one_step,
    open_images,
    prepared_rows,
    raw_data,
    shard_set,
)
from smalti_dagster.checks.check import CheckInput, DataCheck, evaluate
from smalti_dagster.lineage import RESUME_TAG, facts_of, latest, made_in
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.rows_config import RowsConfig
from smalti_dagster.stage import stage_op, stage_spec
from smalti_dagster.stages.data import TAKEN_FROM, build_data
from tests.code_location.declared import FLOWERS, define
from tests.code_location.events import op_config
from tests.code_location.graph import Graph, draw, draw_all
from tests.code_location.row_set import NoSpark

STAGES = ("raw", "prepared", "shards")


# ---------------------------------------------------------------- parts of it


def test_every_check_can_be_executed_by_itself_and_every_asset_too() -> None:
    """The UI offers a check alone if its execution set is the check alone."""
    graph = define(FLOWERS).resolve_asset_graph()
    assert len(graph.asset_check_keys) == 11
    for key in (*graph.asset_check_keys, *graph.get_all_asset_keys()):
        assert graph.get_execution_set_asset_and_check_keys(key) == {key}


def test_an_asset_alone_is_made_alone_with_its_checks(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    draw_all(tmp_path / "photos", per_class=2)
    declared = Graph(instance, tmp_path / "photos", tmp_path / "data").declared
    done = dg.materialize(
        [build_data(declared)],
        selection=[declared.key("raw")],
        instance=instance,
        resources={"smalti_storage": storage, "smalti_spark": NoSpark()},
    )
    assert [event.asset_key for event in done.get_asset_materialization_events()] == [declared.key("raw")]
    assert [check.check_name for check in done.get_asset_check_evaluations()] == ["every_class_can_be_split"]


@pytest.mark.parametrize(("is_blocking", "made"), [(True, ["raw"]), (False, ["raw", "shards", "model"])])
def test_a_blocking_check_that_fails_stops_the_assets_after_its_own_in_the_op_and_the_ops_after_it(
    instance: dg.DagsterInstance, storage: StorageResource, is_blocking: bool, made: list[str]
) -> None:
    specs = [stage_spec(FLOWERS, stage, code="1", kinds=set()) for stage in ("raw", "shards")]
    spec = dg.AssetCheckSpec("is_good", asset=FLOWERS.key("raw"), blocking=is_blocking)
    checks = {"raw": [DataCheck(spec, lambda _: dg.AssetCheckResult(passed=False))]}

    def data(context: dg.AssetExecutionContext, config: Any, storage: StorageResource) -> Iterator[Any]:
        for each in specs:
            yield dg.MaterializeResult(asset_key=each.key)
            checked = checks.get(each.key.path[-1], [])
            if (yield from evaluate(context, FLOWERS, checked, storage, dict)):
                return

    @dg.asset(key=FLOWERS.key("model"), deps=[FLOWERS.key("shards")])
    def model() -> None:
        """Train."""

    op = stage_op("flowers__data", specs, [spec], config=RowsConfig, pool="spark")(data)
    done = dg.materialize([op, model], instance=instance, resources={"smalti_storage": storage}, raise_on_error=False)
    assert done.success is not is_blocking
    assert [event.asset_key.path[-1] for event in done.get_asset_materialization_events()] == made


def test_what_several_checks_of_a_materialisation_need_is_found_once(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    spec = stage_spec(FLOWERS, "raw", code="1", kinds=set())
    asked: list[str] = []

    def find(step: CheckInput) -> int:
        asked.append(step.key.name)
        return 17

    checks = [
        DataCheck(
            dg.AssetCheckSpec(name, asset=spec.key), lambda step: dg.AssetCheckResult(passed=step.once(find) == 17)
        )
        for name in ("first", "second")
    ]

    def data(context: dg.AssetExecutionContext, config: Any, storage: StorageResource) -> Iterator[Any]:
        yield dg.MaterializeResult(asset_key=spec.key)
        yield from evaluate(context, FLOWERS, checks, storage, dict)

    op = stage_op("flowers__data", [spec], [each.spec for each in checks], config=RowsConfig, pool="spark")(data)
    done = dg.materialize([op], instance=instance, resources={"smalti_storage": storage})
    assert [each.passed for each in done.get_asset_check_evaluations()] == [True, True]
    assert asked == ["first"]


# ---------------------------------------------------------------- an own asset between two stages


@pytest.mark.slow
@pytest.mark.spark
def test_the_images_that_an_own_asset_hands_on_are_those_in_the_shards(graph: Graph) -> None:
    declared = graph.declared

    @dg.asset(key=["flowers", "reviewed"], deps=[declared.key("raw")])
    def reviewed(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        files = open_images(context, declared).files
        return hand_on_images(context, declared, [file for file in files if not file.path.endswith("01.jpg")])

    stages = [raw_data(declared), prepared_rows(declared, images_from=reviewed), shard_set(declared)]
    resources = {"smalti_storage": graph.storage, "smalti_spark": SparkResource()}
    defs = dg.Definitions.merge(
        build_definitions(declared, [in_one_step(declared, *stages), reviewed]),
        dg.Definitions(resources=resources, executor=dg.in_process_executor),
    )
    job = defs.resolve_job_def("flowers_reshard_job")
    assert job.execute_in_process(instance=graph.instance).success
    assert sorted(graph.rows()) == [f"{kind}/{number:02}.jpg" for kind in ("daisy", "roses") for number in (0, 2, 3)]


# ---------------------------------------------------------------- tried again


@pytest.fixture
def graph(tmp_path: Path, session: Any) -> Iterator[Graph]:
    """Eight photos of two classes."""
    draw_all(tmp_path / "photos", per_class=4)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Graph(instance, tmp_path / "photos", tmp_path / "data")


def job_of(graph: Graph, kind: str, spark: SparkResource | None = None) -> dg.JobDefinition:
    """A job of the data set, all in this process."""
    here = dg.Definitions.merge(graph.defs(spark), dg.Definitions(executor=dg.in_process_executor))
    return here.resolve_job_def(f"flowers_{kind}_job")


def execute(
    graph: Graph, parent: dg.DagsterRun | None = None, *, spark: SparkResource | None = None, resumes: bool = False
) -> dg.DagsterRun:
    """Execute `flowers_reshard_job`, as a re-execution of another run if one is given, and return the run."""
    job = job_of(graph, "reshard", spark)
    run = graph.instance.create_run_for_job(
        job,
        tags={RESUME_TAG: "true"} if resumes else {},
        parent_run_id=parent.run_id if parent is not None else None,
        root_run_id=(parent.root_run_id or parent.run_id) if parent is not None else None,
    )
    execute_run(InMemoryJob(job), run, graph.instance, raise_on_error=False)
    found = graph.instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


def made(graph: Graph, run: dg.DagsterRun) -> list[str]:
    """The stages that a run has materialised."""
    keys = {stage: graph.declared.key(stage) for stage in STAGES}  # type: ignore[arg-type]
    return [stage for stage, key in keys.items() if made_in(graph.instance, key, run.run_id) is not None]


@pytest.mark.slow
@pytest.mark.spark
def test_a_re_execution_from_failure_works_on_the_images_that_the_failed_run_saw(graph: Graph) -> None:
    failed = execute(graph, spark=NoSpark())
    assert (failed.is_failure, made(graph, failed)) == (True, ["raw"])
    draw(graph.photos, "daisy/99.jpg", number=99)
    again = execute(graph, failed, spark=NoSpark(), resumes=True)
    assert made(graph, again) == []
    resumed = execute(graph, again, resumes=True)
    assert resumed.is_success
    assert made(graph, resumed) == ["prepared", "shards"]
    assert "daisy/99.jpg" not in graph.rows()
    everything = execute(graph, failed)
    assert made(graph, everything) == list(STAGES)
    assert "daisy/99.jpg" in graph.rows()


@pytest.mark.slow
@pytest.mark.spark
def test_a_re_execution_from_failure_of_a_re_execution_of_everything_does_not_go_back_to_the_first(
    graph: Graph,
) -> None:
    first = execute(graph, spark=NoSpark())
    draw(graph.photos, "daisy/99.jpg", number=99)
    (graph.photos / "roses" / "00.jpg").rename(graph.photos / "roses" / "hidden")
    (graph.photos / "moved").mkdir()
    for kind in ("daisy", "roses"):
        (graph.photos / kind).rename(graph.photos / "moved" / kind)
    second = execute(graph, first)  # the source is not as it should be
    for kind in ("daisy", "roses"):
        (graph.photos / "moved" / kind).rename(graph.photos / kind)
    (graph.photos / "moved").rmdir()
    assert (second.is_failure, made(graph, second)) == (True, [])
    third = execute(graph, second, resumes=True)
    assert made(graph, third) == list(STAGES)
    assert "daisy/99.jpg" in graph.rows()


@pytest.mark.slow
@pytest.mark.spark
def test_a_failed_check_is_made_again_on_the_version_of_the_failed_run_which_the_model_then_builds_on(
    graph: Graph,
) -> None:
    execute(graph)
    for number in range(4):
        (graph.photos / "roses" / f"{number:02}.jpg").unlink()
        draw(graph.photos, f"daisy/1{number}.jpg", number=number)
    job = job_of(graph, "everything")
    failed = graph.instance.create_run_for_job(job)
    execute_run(InMemoryJob(job), failed, graph.instance, raise_on_error=False)
    assert graph.facts("shards")["version"] == 2
    config = op_config({"shards": {"accept_removed": ["*"]}, "model": {"epochs": 1}})
    resumed = graph.instance.create_run_for_job(
        job, tags={RESUME_TAG: "true"}, parent_run_id=failed.run_id, root_run_id=failed.run_id, run_config=config
    )
    execute_run(InMemoryJob(job), resumed, graph.instance, raise_on_error=False)
    assert graph.manifest.version == 2
    event = latest(graph.instance, graph.declared.key("shards"))
    assert event is not None
    assert event.run_id == resumed.run_id
    assert facts_of(event)[TAKEN_FROM] == failed.run_id
    started = graph.instance.all_logs(resumed.run_id, of_type=dg.DagsterEventType.STEP_START)
    assert [entry.step_key for entry in started] == ["flowers__data", "flowers__model"]


class AwayOnce(SparkResource):
    """Spark that is away the first time."""

    def session(self, report: Any = None) -> Any:
        if not _asked:
            _asked.append(1)
            raise ConnectionError("Spark is away")
        return super().session(report)


_asked: list[int] = []


@pytest.mark.slow
@pytest.mark.spark
def test_a_step_that_is_retried_does_not_list_the_images_again(graph: Graph) -> None:
    _asked.clear()
    retried = build_data(graph.declared)
    retried.op._retry_policy = dg.RetryPolicy(max_retries=1)
    done = dg.materialize(
        [retried],
        instance=graph.instance,
        resources={"smalti_storage": graph.storage, "smalti_spark": AwayOnce(master="local[2]")},
    )
    assert done.success
    assert [event.asset_key.path[-1] for event in done.get_asset_materialization_events()] == list(STAGES)
