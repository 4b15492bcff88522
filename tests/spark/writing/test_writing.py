"""Answers of tasks, and the columns that the driver takes from them; without Spark."""

import pickle

import pyarrow as pa
import pytest

from smalti.catalog import load_manifest
from smalti.errors import SchemaError
from smalti.format import ShardOptions
from smalti.storage import LocalStore
from smalti.writer.tables.plan import (
    Attempt,
    InputRows,
    OutputColumns,
    WriteOptions,
    WritePlan,
    collect_columns,
    plan_rows,
)
from smalti.writer.tables.task import write_shards
from smalti.writer.tables.transform import Transform
from smalti.writer.tables.types import kinds_of
from smalti.writer.tables.versions import begun, collect_parts, identify, publish_shards
from tests.stores import MemoryStore


def answers_of(store, function, columns, tasks=2):
    """Return the answers of tasks with the rows 0 1, 2 3, ... through the transform, with `columns` as requested."""
    plan = WritePlan(
        store,
        "w",
        ShardOptions(None),
        InputRows(("id",), transform=Transform(function)),
        OutputColumns(requested=columns),
    )
    answers = []
    for task in range(tasks):
        batch = pa.RecordBatch.from_pydict({"c0": pa.array([2 * task, 2 * task + 1], pa.int64())})
        attempt = Attempt.new(task)
        answers.append((attempt, write_shards(plan, iter([batch]), attempt)))
    return answers


def test_tasks_that_get_a_plan_as_bytes_write_what_the_driver_publishes(tmp_path):
    """The steps of a write whose tasks and whose publishing run in processes of another program."""
    store, options = LocalStore(tmp_path), WriteOptions(columns={"id": "int32"}, compression=None)
    rows, output = plan_rows(kinds_of(pa.schema([("id", pa.int64())])), options, columns=options.columns)
    write = identify(store, options, {}, None)
    with begun(store, write) as watch:
        plan = WritePlan(store, write.write_id, options.shard_options, rows, output, disk=watch.disk)
        sent, answers = pickle.dumps(plan), []
        for task in range(2):
            attempt, batch = Attempt.new(task), pa.RecordBatch.from_pydict({"c0": pa.array([2 * task, 2 * task + 1])})
            answers.append((attempt, write_shards(pickle.loads(sent), iter([batch]), attempt)))
        assert not (tmp_path / "index.json").exists()
        published, _ = publish_shards(plan, write, options, answers, lambda *_: pytest.fail("joined elsewhere"), watch)
    manifest = load_manifest(tmp_path)
    assert (manifest.version, manifest.rows, manifest.schema.columns()) == (1, 4, {"id": "int32"})
    assert published.digest == manifest.digest


def test_columns_that_tasks_find_for_themselves_must_agree():
    def days_later(batch):
        kind = pa.int32() if batch["id"][0].as_py() == 0 else pa.date32()
        return pa.RecordBatch.from_arrays([batch["id"].cast(pa.int32()).cast(kind)], ["x"])

    answers = answers_of(MemoryStore(), days_later, {"x": None})
    with pytest.raises(SchemaError, match=r"column 'x' as .* in Spark partition 0 and as .* in partition 1") as caught:
        collect_columns(answers)
    assert caught.value.column == "x"


def test_columns_that_tasks_agree_on_are_those_of_the_set():
    answers = answers_of(MemoryStore(), lambda batch: batch.rename_columns(["x"]), {"x": "uint8"})
    assert collect_columns(answers) == ({"x": "uint8"}, {})
    assert [part.tail.samples for part in collect_parts(answers)] == [2, 2]


def test_tasks_without_rows_decide_no_columns():
    answers = answers_of(MemoryStore(), lambda batch: batch.slice(0, 0), {"x": "uint8"})
    assert collect_columns(answers) is None
    assert collect_parts(answers) == []


def test_a_requested_column_missing_from_the_output_is_named(tmp_path):
    with pytest.raises(SchemaError, match=r"Spark partition 0: .*'label'"):
        answers_of(LocalStore(tmp_path), lambda batch: batch, {"label": "int"}, tasks=1)
    assert list(tmp_path.rglob("*.mds")) == []


def test_a_type_that_cannot_be_stored_is_refused_with_its_column():
    schema = pa.schema([("when", pa.month_day_nano_interval())])
    with pytest.raises(SchemaError, match="column 'when' has type month_day_nano_interval, which cannot be stored"):
        OutputColumns().of_transformed(schema)
