"""Data sets whose source comes in partitions: runs of some of them, backfills, and what schedule and sensor request."""

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti.catalog import history
from smalti.dataset import StreamingDataset
from smalti.errors import StoreNotFound
from smalti.storage import open_store
from smalti_dagster import DataSet, build_definitions
from smalti_dagster.automation.partitions import look_at_partitions
from smalti_dagster.automation.schedules import build_reshard_schedule
from smalti_dagster.automation.watch import build_watch_sensor
from smalti_dagster.declaration import Checks, Declaration, Image, Partitions, Prepare, Shards, Source, Split
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import LocalStorage
from smalti_dagster.sources.inventory import inventories_of, save_inventory
from smalti_dagster.sources.partitions import read_partitions
from smalti_dagster.stage import RunPartitions
from tests.code_location.declared import define
from tests.code_location.events import op_config
from tests.code_location.graph import draw
from tests.code_location.instances import instance_in_folder

FIRST, LAST = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


class Partitioned:
    """A data set `daily`, and the runs of its partitions."""

    def __init__(self, instance: dg.DagsterInstance, storage: LocalStorage, **attributes: Any) -> None:
        self.instance, self.storage = instance, storage
        # Each day has the same few pictures.
        checks = Checks(max_row_loss=1.0, max_class_shift=1.0, max_near_duplicates=1.0, max_split_leakage=1.0)
        shared = {"shards": Shards(size_limit="3kb"), "checks": checks}
        self.declared = Declaration(name="daily", **shared, **attributes)
        self.place = open_store(storage.url("daily/shards"))

    def run(self, first: str, last: str = "", **shards: Any) -> dict[str, Any]:
        """One run of a partition, or of all from a first to a last one; what the shards then say."""
        defs = define(self.declared, storage=self.storage, spark=SparkResource(master="local[2]"))
        job = defs.resolve_job_def("daily_reshard_job")
        key = {"tags": {FIRST: first, LAST: last}} if last else {"partition_key": first}
        config = op_config({"shards": shards}, "daily")
        done = job.execute_in_process(instance=self.instance, run_config=config, **key)  # type: ignore[arg-type]
        assert all(check.passed for check in done.get_asset_check_evaluations())
        return self.facts("shards")

    def facts(self, stage: str) -> dict[str, Any]:
        event = latest(self.instance, self.declared.key(stage))  # type: ignore[arg-type]
        return facts_of(event) if event is not None else {}

    def made(self, stage: str) -> set[str | None]:
        """The partitions of an asset that were made."""
        found = self.instance.fetch_materializations(self.declared.key(stage), limit=100)  # type: ignore[arg-type]
        return {record.partition_key for record in found.records}

    def rows(self, column: str) -> list[Any]:
        """The values of a column in the newest version, sorted."""
        found = []
        for split in ("train", "validation"):
            dataset = StreamingDataset(remote=self.storage.url("daily/shards"), split=split, shuffle=False)
            found += [dataset[at][column] for at in range(len(dataset))]
        return sorted(found)


def put(photos: Path, day: str, *numbers: int) -> None:
    for kind in ("daisy", "roses"):
        for number in numbers:
            draw(photos / f"day={day}", f"{kind}/{number}.jpg", number=number)


def images(photos: Path, **partitions: Any) -> dict[str, Any]:
    return {
        "source": Source(folder=f"{photos}/day={{partition}}"),
        "partitions": Partitions(**partitions),
        "prepare": Prepare(image=Image(size=16)),
        "split": Split(validation=0.5),
    }


TICK = datetime(2026, 11, 23, 3, tzinfo=timezone.utc)
DAYS = {"by": "day", "start": "2026-11-01"}


@pytest.mark.slow
@pytest.mark.spark
def test_the_images_of_a_day_are_appended_and_only_that_day_is_prepared(
    instance: dg.DagsterInstance, storage: LocalStorage, session: Any, tmp_path: Path
) -> None:
    put(tmp_path / "photos", "2026-11-01", 1, 2)
    put(tmp_path / "photos", "2026-11-02", 1, 2)
    sets = Partitioned(instance, storage, **images(tmp_path / "photos", **DAYS))
    sets.run("2026-11-01")
    assert sets.rows("path") == [f"day=2026-11-01/{kind}/{n}.jpg" for kind in ("daisy", "roses") for n in (1, 2)]
    assert sets.facts("prepared")["prepared"] == 4
    sets.run("2026-11-02")
    assert len(sets.rows("path")) == 8
    assert (sets.facts("prepared")["prepared"], sets.facts("prepared")["kept"]) == (4, 4)
    assert sets.made("shards") == {"2026-11-01", "2026-11-02"}

    put(tmp_path / "photos", "2026-11-01", 3)  # later, and nobody reads that day again
    again = sets.run("2026-11-02")
    assert "nothing changed since version 2" in again["what_was_done"]
    assert len(sets.rows("path")) == 8


@pytest.mark.slow
@pytest.mark.spark
def test_a_backfill_of_many_days_is_one_run_and_one_version(
    instance: dg.DagsterInstance, storage: LocalStorage, session: Any, tmp_path: Path
) -> None:
    for day in (1, 2, 4):  # the third has no folder
        put(tmp_path / "photos", f"2026-11-0{day}", 1, 2)
    sets = Partitioned(instance, storage, **images(tmp_path / "photos", **DAYS))
    sets.run("2026-11-01", "2026-11-04")
    assert [entry.version for entry in history(sets.place)] == [1]
    assert len(sets.rows("path")) == 12
    assert sets.made("raw") == {f"2026-11-0{day}" for day in (1, 2, 3, 4)}
    assert "gallery" not in sets.facts("raw")  # not once for each day
    [shown] = instance.fetch_observations(sets.declared.key("raw"), limit=9).records
    observed = shown.event_log_entry.asset_observation
    assert observed is not None
    assert "gallery" in observed.metadata
    for path in (tmp_path / "photos" / "day=2026-11-02").rglob("*.jpg"):
        path.unlink()
    sets.run("2026-11-02")
    assert {path.split("/")[0] for path in sets.rows("path")} == {"day=2026-11-01", "day=2026-11-04"}


@pytest.mark.slow
@pytest.mark.spark
def test_the_rows_of_a_partition_are_replaced_and_the_shards_of_others_kept(
    instance: dg.DagsterInstance, storage: LocalStorage, session: Any, tmp_path: Path
) -> None:
    def write(day: str, *amounts: int) -> None:
        (tmp_path / "table" / f"day={day}").mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"amount": list(amounts)}), tmp_path / "table" / f"day={day}" / "part.parquet")

    write("2026-11-01", *range(1000))
    write("2026-11-02", *range(1000, 2000))
    sets = Partitioned(
        instance,
        storage,
        source=Source(table=str(tmp_path / "table"), format="parquet"),
        partitions=Partitions(column="day", **DAYS),
    )
    first = sets.run("2026-11-01", "2026-11-02")
    assert sets.rows("amount") == list(range(2000))
    assert set(sets.rows("day")) == {"2026-11-01", "2026-11-02"}
    write("2026-11-02", *range(5000, 5500))
    second = sets.run("2026-11-02")
    assert sets.rows("amount") == [*range(1000), *range(5000, 5500)]
    assert (first["rows_written"], second["rows_written"] < 1500) == (2000, True)
    assert second["shards_kept"] > 0
    third = sets.run("2026-11-01")
    assert "nothing changed since version 2" in third["what_was_done"]
    whole = sets.run("2026-11-01", rewrite=True)
    assert (whole["version"], whole["rows_written"], whole["shards_kept"]) == (3, 1500, 0)
    assert sets.rows("amount") == [*range(1000), *range(5000, 5500)]
    write("2026-11-01", *range(900))
    last = sets.run("2026-11-01")
    assert last["shards_kept"] > 0, "of the rewritten ones"
    assert sets.rows("amount") == [*range(900), *range(5000, 5500)]


@pytest.mark.slow
@pytest.mark.spark
def test_a_function_makes_the_rows_of_partitions_and_never_mixes_them(
    instance: dg.DagsterInstance, storage: LocalStorage, session: Any, tmp_path: Path
) -> None:
    table = pa.table({"amount": [1, 2, 3], "day": ["a", "a", "b"], "part": ["train"] * 3})
    pq.write_table(table, tmp_path / "rows.parquet")
    sets = Partitioned(
        instance,
        storage,
        source=Source(table=str(tmp_path / "rows.parquet"), format="parquet"),
        partitions=Partitions(by="key", column="day"),
        split=Split(column="part"),
        prepare=Prepare(function="tests.code_location.test_partitions:total"),
    )
    instance.add_dynamic_partitions("daily_partitions", ["a", "b"])
    sets.run("a", "b")
    dataset = StreamingDataset(remote=storage.url("daily/shards"), split="train", shuffle=False)
    found = sorted((dataset[at]["day"], dataset[at]["total"]) for at in range(len(dataset)))
    assert found == [("a", 3), ("b", 3)]


def total(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One row with the sum of a batch."""
    return pa.RecordBatch.from_pydict({"total": [sum(batch.column("amount").to_pylist())]})


def requests(result: Any) -> list[tuple[str, str]]:
    return [(request.tags[FIRST], request.tags[LAST]) for request in result.run_requests or []]


@pytest.mark.slow
@pytest.mark.spark
def test_the_sensor_and_the_schedule_request_the_partitions_that_changed(
    storage: LocalStorage, session: Any, tmp_path: Path
) -> None:
    # One in a folder: a schedule opens its instance from the outside.
    with instance_in_folder() as instance:
        check_requests(instance, storage, tmp_path)


def check_requests(instance: dg.DagsterInstance, storage: LocalStorage, tmp_path: Path) -> None:
    put(tmp_path / "photos", "new", 1, 2)
    put(tmp_path / "photos", "old", 1, 2)
    sets = Partitioned(instance, storage, **images(tmp_path / "photos", by="key"))
    now = [0.0]
    watch = sets.declared.automation.watch
    assert watch is not None
    sensor = build_watch_sensor(sets.declared, watch, clock=lambda: now[0])

    def tick(cursor: str | None) -> Any:
        with dg.build_sensor_context(
            instance=instance, cursor=cursor, resources={"smalti_storage": storage}, definitions=define(sets.declared)
        ) as context:
            return sensor.evaluate_tick(context)

    seen = tick(None)
    assert requests(seen) == []
    now[0] = 1000.0
    due = tick(seen.cursor)
    assert requests(due) == [("new", "old")]
    assert due.dynamic_partitions_requests[0].partition_keys == ["new", "old"]
    instance.add_dynamic_partitions("daily_partitions", ["new", "old"])
    sets.run("new", "old")

    put(tmp_path / "photos", "old", 3)
    put(tmp_path / "photos", "latest", 1)
    schedule = build_reshard_schedule(sets.declared, "0 3 * * *")
    ticks = {"instance": instance, "resources": {"smalti_storage": storage}, "scheduled_execution_time": TICK}
    with dg.build_schedule_context(**ticks) as context:
        assert requests(schedule.evaluate_tick(context)) == [("old", "latest")]
    sets.run("old", "latest")
    with dg.build_schedule_context(**ticks) as context:
        found = schedule.evaluate_tick(context)
    assert requests(found) == []
    assert found.skip_message == "no partition of daily has changed since it was read"


def test_a_partition_that_was_read_and_did_not_get_into_the_shards_counts_as_changed(
    instance: dg.DagsterInstance, storage: LocalStorage, tmp_path: Path
) -> None:
    for day in (1, 2, 3):
        put(tmp_path / "photos", f"2026-11-0{day}", day)
    declared = Declaration(name="daily", **images(tmp_path / "photos", **DAYS))
    days = ("2026-11-01", "2026-11-02")
    _, read = read_partitions(declared, f"{tmp_path}/photos/day={{partition}}", RunPartitions(days), storage)
    facts = {"partitions": read.save(inventories_of(declared, storage))}

    def made(stage: Any, *keys: str) -> None:
        for key in keys:
            event = dg.AssetMaterialization(declared.key(stage), partition=key, metadata=facts)
            instance.report_runless_asset_event(event)

    made("raw", *days)
    made("shards", "2026-11-01")
    assert look_at_partitions(instance, declared, storage).changed == ("2026-11-02", "2026-11-03")
    made("shards", "2026-11-02")
    assert look_at_partitions(instance, declared, storage).changed == ("2026-11-03",)
    made("raw", "2026-11-01")  # once more, in a run that failed then
    assert look_at_partitions(instance, declared, storage).changed == ("2026-11-01", "2026-11-03")


def test_a_source_that_is_gone_does_not_empty_its_partitions(storage: LocalStorage, tmp_path: Path) -> None:
    put(tmp_path / "photos", "2026-11-01", 1)
    put(tmp_path / "photos", "2026-11-02", 1)
    declared = Declaration(name="daily", **images(tmp_path / "photos", **DAYS))
    address = f"{tmp_path}/photos/day={{partition}}"
    _, first = read_partitions(declared, address, RunPartitions(("2026-11-01",)), storage)
    (tmp_path / "photos").rename(tmp_path / "unmounted")
    with pytest.raises(StoreNotFound, match="photos, the folder above all partitions, is empty or does not exist"):
        read_partitions(declared, address, RunPartitions(("2026-11-02",), first.own), storage)
    put(tmp_path / "photos", "2026-11-03", 1)
    folder, second = read_partitions(declared, address, RunPartitions(("2026-11-02",), first.own), storage)
    assert second.own == {"2026-11-02": ""}
    assert [file.path.split("/")[0] for file in folder.files] == ["day=2026-11-01"] * 2


def test_what_was_read_of_other_partitions_is_in_the_joint_inventory_of_the_last_run(
    storage: LocalStorage, tmp_path: Path
) -> None:
    draw(tmp_path / "photos" / "day=2026-11-01", "tulips/1.jpg", number=1)
    put(tmp_path / "photos", "2026-11-02", 1)
    put(tmp_path / "photos", "2026-11-03", 1)
    declared = Declaration(name="daily", **images(tmp_path / "photos", **DAYS))
    address, place = f"{tmp_path}/photos/day={{partition}}", inventories_of(declared, storage)
    days = ("2026-11-01", "2026-11-02")
    joint, first = read_partitions(declared, address, RunPartitions(days), storage)
    last = {"inventory": save_inventory(place, joint), "partitions": first.save(place)}
    for name in first.own.values():
        place.store().delete(name)  # as if nobody could read them one by one
    folder, second = read_partitions(declared, address, RunPartitions(("2026-11-03",), first.own), storage, last=last)
    whole, _ = read_partitions(declared, address, RunPartitions((*days, "2026-11-03")), storage)
    assert folder == whole
    assert second.others == first.own
    without = RunPartitions(("2026-11-03",), {"2026-11-02": first.own["2026-11-02"]})
    folder, _ = read_partitions(declared, address, without, storage, last=last)
    assert folder.classes == ("daisy", "roses"), "the class of the day that went is gone"


PHOTOS = "name: photos\nsource: {folder: 's3://b/day={partition}'}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PHOTOS, "declare `partitions`"),
        (f"{PHOTOS}partitions: {{by: day}}", "`start` is the first window"),
        (f"{PHOTOS}partitions: {{by: key, start: '2026-11-01'}}", "`start` is the first window"),
        (f"{PHOTOS}partitions: {{by: day, start: 'November'}}", "must be like 2026-11-01"),
        (f"{PHOTOS}partitions: {{by: key, column: day}}", "needs a source of rows"),
        ("name: a\nsource: {folder: x}\npartitions: {by: key}", "need `source.folder` with {partition} once"),
        ("name: a\nsource: {table: t}\npartitions: {by: key}", "need `column`"),
    ],
)
def test_partitions_that_cannot_be_are_refused_with_a_message(text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        DataSet.resolve_from_yaml(text)


NOVEMBER = {"by": "day", "start": "2026-11-01"}
HOURS = {"by": "hour", "start": "2026-11-01-00:00"}


def test_a_schedule_requests_the_windows_that_were_over_at_its_tick_and_that_the_shards_do_not_hold() -> None:
    night = datetime(2026, 11, 20, 3, tzinfo=timezone.utc)
    midnight = datetime(2026, 11, 20, tzinfo=timezone.utc)
    first, last = "2026-11-19-03:00", "2026-11-20-02:00"
    cases: list[tuple[dict[str, str], str, datetime, list[str], tuple[str, str] | None]] = [
        (NOVEMBER, "0 3 * * *", night, [], ("2026-11-19", "2026-11-19")),
        (NOVEMBER, "0 3 * * *", night, ["2026-11-18"], ("2026-11-19", "2026-11-19")),
        (NOVEMBER, "0 3 * * *", night, ["2026-11-19"], ("2026-11-19", "2026-11-19")),
        (NOVEMBER, "0 3 * * *", night, ["2026-11-05", "2026-11-15"], ("2026-11-16", "2026-11-19")),  # an outage
        (NOVEMBER, "0 3 * * *", night, ["2026-11-20"], ("2026-11-19", "2026-11-19")),  # by hand, since the tick
        (NOVEMBER, "0 * * * *", night, ["2026-11-19"], ("2026-11-19", "2026-11-19")),
        (NOVEMBER, "0 0 * * *", midnight, [], ("2026-11-19", "2026-11-19")),
        (NOVEMBER, "0 3 * * 5", night, [], ("2026-11-13", "2026-11-19")),
        (NOVEMBER, "0 3 * * *", datetime(2026, 11, 1, 3, tzinfo=timezone.utc), [], None),
        (HOURS, "0 3 * * *", night, [], (first, last)),
        (HOURS, "0 3 * * *", night, ["2026-11-19-02:00"], (first, last)),
        (HOURS, "0 3 * * *", night, ["2026-11-18-02:00"], ("2026-11-18-03:00", last)),
    ]
    found = []
    with instance_in_folder() as instance:
        for number, (partitions, cron, tick, held, _) in enumerate(cases):
            declared = Declaration(
                name=f"set{number}",
                source=Source(table="t"),
                partitions=Partitions(column="day", **partitions),  # type: ignore[arg-type]
            )
            for key in held:
                made = dg.AssetMaterialization(declared.key("shards"), partition=key)
                instance.report_runless_asset_event(made)
            schedule = build_reshard_schedule(declared, cron)
            request: Any = schedule(dg.build_schedule_context(instance=instance, scheduled_execution_time=tick))
            found.append(asked_for(request))
    assert found == [case[-1] for case in cases]


def asked_for(request: Any) -> tuple[str, str] | None:
    """The first and the last partition that are requested; None for none."""
    if isinstance(request, dg.SkipReason):
        return None
    key = request.partition_key
    return (key, key) if key else (request.tags[FIRST], request.tags[LAST])


def test_rows_by_key_have_no_schedule_because_a_person_alone_knows_the_keys() -> None:
    text = "name: a\nsource: {table: t}\npartitions: {by: key, column: day}"
    assert not build_definitions(DataSet.resolve_from_yaml(text)).schedules
    text = text.replace("by: key", "by: day, start: '2026-11-01'")
    assert [each.name for each in build_definitions(DataSet.resolve_from_yaml(text)).schedules or []] == [
        "a_reshard_schedule"
    ]
