"""The external asset of a source: its data versions, who records them, and what the UI then says about `raw`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from smalti.errors import StoreNotFound
from smalti_dagster.declaration import Automation, Declaration, Notify, Partitions, Source, Watch
from smalti_dagster.resources.databricks.compute import DatabricksResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.rows_config import rows_config
from smalti_dagster.sources.unchanged import UNCHANGED_WHILE, certain_state
from smalti_dagster.stage import StageInput
from smalti_dagster.stages.running import run_stage
from smalti_dagster.stages.source import WATCHED, last_read, look, observe, recorded_versions
from tests.code_location.declared import declare, define


class Flow:
    """A declared data set, of which only the raw data are read: without Spark."""

    def __init__(self, instance: dg.DagsterInstance, storage: StorageResource, declared: Declaration) -> None:
        self.instance, self.storage, self.declared = instance, storage, declared
        raw = dg.define_asset_job("raw_job", selection=dg.AssetSelection.assets(declared.key("raw")))
        self.defs = dg.Definitions.merge(define(declared, storage=storage), dg.Definitions(jobs=[raw]))

    def read(self, **options: Any) -> None:
        job = self.defs.resolve_job_def("raw_job")
        assert job.execute_in_process(instance=self.instance, **options).success

    def observe(self) -> int:
        """Run the observe job; how many observations it has made."""
        done = self.defs.resolve_job_def("flowers_observe_job").execute_in_process(instance=self.instance)
        return sum(event.event_type_value == "ASSET_OBSERVATION" for event in done.all_events)

    def status(self, partition: str | None = None) -> str:
        """Return the words of the UI about `raw`: its status, and the causes if it is out of date."""
        graph = self.defs.resolve_asset_graph()
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        key = self.declared.key("raw")
        if (status := resolver.get_status(key, partition)) is not StaleStatus.STALE:
            return status.value
        causes = resolver.get_stale_causes(key, partition)
        return ", ".join(f"{cause.dependency.asset_key.to_user_string()} {cause.reason}" for cause in causes)

    @property
    def observed(self) -> int:
        return len(self.instance.fetch_observations(self.declared.source_key, limit=100).records)


@contextmanager
def counted_queries() -> Iterator[list[str]]:
    """The queries that are sent to any database meanwhile."""
    statements: list[str] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT"):
            statements.append(statement)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", count)
    try:
        yield statements
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", count)


CHANGED = "flowers/source has a new dependency data version"


def put(photos: Path, *names: str) -> None:
    for name in names:
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(name.encode())


def test_the_last_reading_of_a_source_is_found_in_as_many_queries_however_often_another_was_read(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    put(tmp_path / "photos", "roses/1.jpg", "daisy/1.jpg")
    flow = Flow(instance, storage, declare(source=Source(folder=str(tmp_path / "photos"))))
    never_read = declare(source=Source(folder=str(tmp_path / "new")))
    assert last_read(instance, flow.declared) is None
    flow.read()
    [run] = instance.get_runs()
    for _ in range(2):
        for number in range(60):
            elsewhere = dg.AssetMaterialization(
                flow.declared.key("raw"), partition=f"{number}", metadata={"source": "elsewhere"}
            )
            instance.report_runless_asset_event(elsewhere)
        with counted_queries() as queries:
            found = last_read(instance, flow.declared)
        assert found is not None
        assert (found.run_id, len(queries)) == (run.run_id, 4)  # the asset, its newest, the runs, the events of one
        with counted_queries() as queries:
            assert last_read(instance, never_read) is None
        assert len(queries) == 3


@pytest.mark.parametrize(
    "watch",
    [
        pytest.param({}, id="full listing", marks=pytest.mark.nightly),  # what a paged one gives, too
        pytest.param({"listing": "paged"}, id="paged listing"),
        pytest.param({"file": "_SUCCESS"}, id="file"),
    ],
)
def test_raw_is_up_to_date_after_a_run_and_out_of_date_when_a_change_was_observed(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path, watch: dict[str, Any]
) -> None:
    photos = tmp_path / "photos"
    put(photos, "roses/1.jpg", "daisy/1.jpg", "_SUCCESS")
    declared = declare(source=Source(folder=str(photos)), automation=Automation(watch=Watch(**watch)))
    flow = Flow(instance, storage, declared)
    assert flow.status() == "MISSING"
    flow.read()
    assert flow.status() == "FRESH"
    assert (flow.observe(), flow.status()) == (0, "FRESH")

    put(photos, "roses/2.jpg", "_SUCCESS")
    assert flow.status() == "FRESH"  # nobody has looked
    assert (flow.observe(), flow.observe(), flow.observed) == (1, 0, 2)
    assert flow.status() == CHANGED
    flow.read()  # of a version that was recorded before the step began, and is not recorded again
    assert (flow.status(), flow.observed) == ("FRESH", 2)

    put(photos, "roses/3.jpg", "_SUCCESS")
    flow.read()  # of a version that the step itself records
    assert (flow.status(), flow.observed) == ("FRESH", 3)
    (photos / "roses" / "3.jpg").unlink()
    put(photos, "_SUCCESS")
    assert flow.observe() == 1
    assert flow.status() == CHANGED


def test_each_partition_is_out_of_date_by_itself(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    put(photos, "day=a/roses/1.jpg", "day=b/roses/1.jpg")
    source = Source(folder=f"{photos}/day={{partition}}")
    flow = Flow(instance, storage, declare(source=source, partitions=Partitions(by="key"), train=None))
    instance.add_dynamic_partitions("flowers_partitions", ["a", "b"])
    assert (flow.observe(), flow.observe()) == (2, 0)
    flow.read(tags={"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"})
    assert [flow.status(key) for key in "ab"] == ["FRESH", "FRESH"]
    put(photos, "day=b/roses/2.jpg")
    assert (flow.observe(), flow.observe()) == (1, 0)
    assert [flow.status(key) for key in "ab"] == ["FRESH", CHANGED]
    flow.read(partition_key="b")
    put(photos, "day=a/roses/2.jpg")
    flow.read(partition_key="a")  # not observed before
    assert [flow.status(key) for key in "ab"] == ["FRESH", "FRESH"]
    assert recorded_versions(instance, flow.declared).keys() == {"a", "b"}


def test_a_run_of_another_source_records_no_version_of_the_declared_one(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    put(tmp_path, "photos/roses/1.jpg", "others/roses/1.jpg")
    flow = Flow(instance, storage, declare(source=Source(folder=str(tmp_path / "photos"))))
    flow.read(run_config={"ops": {"flowers__data": {"config": {"raw": {"source": str(tmp_path / "others")}}}}})
    assert flow.observed == 0


def test_a_run_of_another_source_needs_no_file_that_is_watched_in_the_declared_one(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    put(tmp_path, "photos/roses/1.jpg", "photos/_SUCCESS", "others/roses/1.jpg")
    watch = Watch(file="_SUCCESS")
    declared = declare(source=Source(folder=str(tmp_path / "photos")), automation=Automation(watch=watch))
    flow = Flow(instance, storage, declared)
    flow.read(run_config={"ops": {"flowers__data": {"config": {"raw": {"source": str(tmp_path / "others")}}}}})
    assert flow.observed == 0


def version() -> str:
    """Return the version of rows that never change."""
    return "1"


class Elsewhere(DatabricksResource):
    """A cluster that sees another state of the source, as through a mount."""

    def run(self, *_: Any, **__: Any) -> tuple[Any, dict[str, Any]]:
        facts = {"digest": "rows", WATCHED: "there", UNCHANGED_WHILE: "there"}
        return {"metadata": dg.serialize_value(facts), "data_version": "rows", "tags": {}}, {}


def test_the_state_of_rows_that_a_cluster_reads_is_what_dagster_sees_and_the_sensor_compares(
    storage: StorageResource,
) -> None:
    source = Source(sql="select 1", version="tests.code_location.test_source:version")
    notify = Notify(slack="${VISION_SLACK}")  # which the cluster does not need
    declared = declare(source=source, train=None, automation=Automation(notify=notify))
    config = rows_config(declared)()
    step, cluster = StageInput(declared, "run", logging.getLogger()), Elsewhere(volume="/Volumes/a/b/c")
    cluster.packages.append("tests")
    context: Any = None
    made = run_stage(context, "raw", step, config, storage, cluster, is_last=True)
    seen = look(declared, storage, {})
    assert seen is not None
    assert {made.metadata[WATCHED], made.metadata[UNCHANGED_WHILE]} == {seen.digest}


def test_a_query_whose_variable_has_another_value_is_another_source(
    storage: StorageResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "select * from orders where tenant = '${TENANT}'"
    declared = declare(source=Source(sql=sql, version="tests.code_location.test_source:version"), train=None)
    found = set()
    for tenant in ("one", "other"):
        monkeypatch.setenv("TENANT", tenant)
        found.add(certain_state(declared, rows_config(declared)(), storage))
    assert len(found) == 2


def test_the_observe_job_of_a_set_that_is_drawn_says_that_a_run_has_to_draw_it_first(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    with pytest.raises(dg.Failure, match="launch flowers_reshard_job once"):
        Flow(instance, storage, declare()).observe()


def test_a_source_that_is_gone_fails_the_observe_job(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    flow = Flow(instance, storage, declare(source=Source(folder=str(tmp_path / "photos"))))
    with pytest.raises(Exception, match="there is no such folder"):
        flow.observe()
    table = Source(table=str(tmp_path / "table"), format="delta")
    declared = declare(source=table, train=None)
    with pytest.raises(StoreNotFound, match="has no file of a table"):
        observe(instance, declared, storage)


def test_a_run_of_everything_looks_at_the_source_and_makes_what_follows_from_it(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    """As `dg launch --assets '*'` selects it."""
    put(tmp_path / "photos", "roses/1.jpg", "daisy/1.jpg")
    flow = Flow(instance, storage, declare(source=Source(folder=str(tmp_path / "photos"))))
    selection = dg.AssetSelection.assets(flow.declared.source_key, flow.declared.key("raw"))
    job = dg.define_asset_job("both_job", selection=selection)
    defs = dg.Definitions.merge(flow.defs, dg.Definitions(jobs=[job]))
    for new, observed in ([], 1), ([], 1), (["roses/2.jpg"], 2):  # one observation of each version
        put(tmp_path / "photos", *new)
        done = defs.resolve_job_def("both_job").execute_in_process(instance=instance)
        assert [event.asset_key for event in done.get_asset_materialization_events()] == [flow.declared.key("raw")]
        assert flow.observed == observed
