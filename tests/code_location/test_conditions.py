"""Automation conditions in the declaration, by Dagster's own evaluation of them."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

from smalti_dagster import DataSet, build_definitions
from smalti_dagster.automation.watch import build_watch_sensor
from smalti_dagster.declaration import Automation, Declaration, Partitions, Source, Watch
from smalti_dagster.resources.storage import StorageResource
from tests.code_location.declared import declare, define

NOW = datetime(2026, 11, 23, 2, 30, tzinfo=timezone.utc)


class Conditions:
    """A declared data set on a folder, and ticks of its conditions; what they request is recorded as made."""

    def __init__(self, instance: dg.DagsterInstance, storage: StorageResource, folder: Path, condition: str) -> None:
        self.instance, self.storage, self.folder, self.now = instance, storage, folder, NOW
        self.declared = declare(
            source=Source(folder=str(folder)),
            automation=Automation(condition=condition, reshard="0 3 * * *", watch=Watch(quiet_seconds=60)),
        )
        self.defs, self.cursor = define(self.declared, storage=storage), None
        self.sensor = build_watch_sensor(self.declared, Watch(quiet_seconds=60), clock=self._time)
        self.watched: str | None = None
        (folder / "roses").mkdir(parents=True)
        self.put("1.jpg")

    def _time(self) -> float:
        return self.now.timestamp()

    def put(self, name: str) -> None:
        (self.folder / "roses" / name).write_text(name)

    def watch(self) -> int:
        """One tick of the watch sensor; how many data versions it has recorded."""
        with dg.build_sensor_context(
            instance=self.instance,
            definitions=self.defs,
            cursor=self.watched,
            resources={"smalti_storage": self.storage},
        ) as context:
            found = self.sensor.evaluate_tick(context)
        assert not found.run_requests
        self.watched = found.cursor
        for event in found.asset_events:
            self.instance.report_runless_asset_event(event)
        return len(found.asset_events)

    def tick(self, *, minutes: float = 1, passed: bool = True) -> set[str]:
        """One tick of the conditions: the assets that are requested, which are then materialised and checked."""
        self.now += timedelta(minutes=minutes)
        selection = dg.AssetSelection.groups("flowers")  # without one, Dagster uses a parameter that is in beta
        found = dg.evaluate_automation_conditions(
            self.defs, self.instance, selection, evaluation_time=self.now, cursor=self.cursor
        )
        self.cursor = found.cursor
        keys = list(map(self.declared.key, self.declared.stages))
        requested = [key for key in keys if found.get_num_requested(key)]
        graph = self.defs.resolve_asset_graph()
        for key in requested:
            self.instance.report_runless_asset_event(dg.AssetMaterialization(key))
            for check in graph.get_check_keys_for_assets({key}):
                evaluation = dg.AssetCheckEvaluation(
                    asset_key=key,
                    check_name=check.name,
                    passed=passed,
                    metadata={},
                    severity=dg.AssetCheckSeverity.ERROR,
                )
                self.instance.report_runless_asset_event(evaluation)
        return {key.path[-1] for key in requested}


DATA = {"raw", "prepared", "shards"}


def test_j1_eager_requests_the_data_once_for_a_change_and_the_model_when_the_checks_have_passed(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    found = Conditions(instance, storage, tmp_path / "photos", "eager")
    assert (found.watch(), found.tick()) == (0, set())
    assert found.watch() == 1  # quiet for a minute
    assert found.tick() == DATA
    assert found.tick() == {"model"}
    assert [found.watch() + len(found.tick()) for _ in range(3)] == [0, 0, 0]
    found.put("2.jpg")
    assert (found.watch(), found.tick()) == (0, set())
    assert found.watch() == 1
    assert found.tick(passed=False) == DATA
    assert [found.tick() for _ in range(3)] == [set()] * 3


def test_on_missing_requests_the_data_of_each_new_partition_once(instance: dg.DagsterInstance) -> None:
    declared = declare(
        source=Source(folder="/photos/{partition}"),
        partitions=Partitions(by="key"),
        automation=Automation(condition="on_missing"),
        train=None,
    )
    defs, selection = define(declared), dg.AssetSelection.groups("flowers")
    found, requested = None, []
    for new in ([], ["a"], [], ["b", "c"]):
        instance.add_dynamic_partitions("flowers_partitions", new)
        for key in new:  # as the watch sensor does
            instance.report_runless_asset_event(dg.AssetObservation(declared.source_key, partition=key))
        cursor = found.cursor if found is not None else None
        found = dg.evaluate_automation_conditions(defs, instance, selection, cursor=cursor)
        stages = [found.get_requested_partitions(declared.key(stage)) for stage in declared.stages]
        assert stages == [stages[0]] * 3
        requested.append(stages[0])
        for stage in declared.stages:
            for key in stages[0]:
                instance.report_runless_asset_event(dg.AssetMaterialization(declared.key(stage), partition=key))
    assert requested == [set(), {"a"}, set(), {"b", "c"}]


def test_j2_on_cron_requests_the_data_once_at_each_time_of_the_schedule(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    found = Conditions(instance, storage, tmp_path / "photos", "on_cron")
    assert [found.tick(minutes=minutes) for minutes in (1, 28)] == [set(), set()]  # 02:31, 02:59
    assert found.tick(minutes=2) == DATA  # 03:01
    assert found.tick(minutes=1) == {"model"}
    assert [found.tick(minutes=60) for _ in range(3)] == [set()] * 3
    assert found.tick(minutes=24 * 60) == DATA


def names_of(declared: Declaration) -> set[str]:
    found = build_definitions(declared)
    dg.Definitions.validate_loadable(define(declared))
    return {each.name for each in (*(found.schedules or []), *(found.sensors or []))}


def test_conditions_replace_the_schedule_and_the_training_sensor() -> None:
    declared = declare(automation=Automation(condition="eager"))
    assert names_of(declared) == {"flowers_watch_sensor", "flowers_automation_sensor"}
    graph = define(declared).resolve_asset_graph()
    assert all(graph.get(declared.key(stage)).automation_condition for stage in declared.stages)
    untrained = declare(automation=Automation(condition="eager", train_on_new_version=False))
    assert define(untrained).resolve_asset_graph().get(untrained.key("model")).automation_condition is None


IMAGES = "name: a\nsource: {folder: x}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{IMAGES}automation: {{condition: on_cron, reshard: null}}", "needs `reshard`, the cron expression"),
        (f"{IMAGES}automation: {{condition: sometimes}}", "eager"),
        (f"{IMAGES}automation: {{condition: on_missing}}", "needs `partitions`"),
        (f"{IMAGES}automation: {{watch: {{file: a, queue: 'https://q/b'}}}}", "give one of .* found file and queue"),
        (f"{IMAGES}automation: {{reshard: null, watch: {{queue: 'https://q/b'}}}}", "needs the schedule `reshard`"),
        (f"{IMAGES}automation: {{condition: on_cron, watch: {{queue: 'https://q/b'}}}}", "and no `condition`"),
        ("name: a\nsource: {manifest: a.csv}\nautomation: {watch: {listing: paged}}", "give `watch.file`"),
        ("name: a\nsource: {table: t}\nautomation: {watch: {file: a}}", "needs a source of images without partitions"),
    ],
)
def test_automation_that_cannot_be_is_refused_with_a_message(text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        DataSet.resolve_from_yaml(text)


EVERY_NIGHT = """
type: smalti_dagster.DataSet
template_vars_module: .conditions
attributes:
  name: slides
  source: {folder: "s3://clinic/slides"}
  automation: {reshard: null, watch: null}
post_processing:
  assets:
    - target: "key:slides/raw or key:slides/prepared or key:slides/shards"
      attributes:
        automation_condition: "{{ every_night }}"
"""
CONDITIONS = """
import dagster as dg

@dg.template_var
def every_night() -> dg.AutomationCondition:
    return dg.AutomationCondition.cron_tick_passed("0 3 * * *") & ~dg.AutomationCondition.in_progress()
"""


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_any_condition_is_attached_by_post_processing_and_requests_the_data_every_night(
    instance: dg.DagsterInstance,
) -> None:
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=DataSet, defs_yaml_contents=yaml.safe_load(EVERY_NIGHT))
        (folder / "conditions.py").write_text(CONDITIONS)
        with sandbox.load_component_and_build_defs(defs_path=folder) as (_, defs):
            selection, cursor, requested = dg.AssetSelection.groups("slides"), None, []
            for hour in (2, 4, 5):
                now = datetime(2026, 11, 23, hour, tzinfo=timezone.utc)
                found = dg.evaluate_automation_conditions(defs, instance, selection, evaluation_time=now, cursor=cursor)
                cursor = found.cursor
                keys = [dg.AssetKey(["slides", stage]) for stage in ("source", "raw", "prepared", "shards")]
                requested.append([key.path[1] for key in keys if found.get_num_requested(key)])
            assert requested == [[], ["raw", "prepared", "shards"], []]
            assert not defs.schedules
