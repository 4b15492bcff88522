"""H11: the same rows give the same shards in the same order, and the same epoch, however Spark tasks finish."""

import random
import time

import pyarrow as pa
import pytest

from smalti.catalog import load_manifest, new_write_id
from smalti.dataset import OrderOptions, StreamingDataset
from smalti.format import Schema, ShardOptions
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.storage import LocalStore, open_store
from smalti.writer.tables.plan import Attempt, InputRows, OutputColumns, WritePlan, one_answer_each
from smalti.writer.tables.task import write_shards
from tests.faults.jobs_without_spark import collect_shards
from tests.spark.own_session import own_session

TASKS = 5
DEADLINE = 60.0


def contents(shards):
    """Return the facts that identify shards, without their names, which differ between writes."""
    return [(shard.samples, shard.raw.num_bytes, tuple(sorted(shard.raw.hashes.items()))) for shard in shards]


def epochs(out):
    dataset = StreamingDataset(
        remote=str(out), shuffle=True, order=OrderOptions(num_canonical_nodes=3, tail="short"), batch_size=10
    )
    return [[int(number) for batch in dataset.batches() for number in batch["id"]] for _ in range(2)]


def test_h11_task_results_in_any_order_give_the_shards_in_one_order(tmp_path):
    plan = WritePlan(
        LocalStore(tmp_path),
        new_write_id(),
        ShardOptions(size_limit=256),
        InputRows(("id",)),
        OutputColumns(Schema.from_columns({"id": "int64"})),
    )
    answers = []
    for task in range(TASKS):
        batch = pa.RecordBatch.from_pydict({"id": pa.array(range(task * 40, task * 40 + 40), pa.int64())})
        attempt = Attempt(task, f"{99 - task:08x}")  # later tasks with names that sort earlier
        answers.append((attempt, write_shards(plan, iter([batch]), attempt)))
    expected = [shard.raw.basename for shard in collect_shards(one_answer_each(answers))]
    assert [name.split("/")[1][:5] for name in expected] == sorted(name.split("/")[1][:5] for name in expected)
    assert len(expected) > 2 * TASKS
    for seed in range(20):
        shuffled = random.Random(seed).sample(answers, TASKS)
        assert [shard.raw.basename for shard in collect_shards(one_answer_each(shuffled))] == expected


@pytest.fixture(scope="module")
def spark():
    """Two cores; a task that fails is tried once more."""
    with own_session() as session:
        yield session


def delayed(frame, out, first):
    """Return the frame with tasks that hand out their rows only after the tasks in `first` have stored shards."""
    place = str(out)

    def wait(batches):
        from pathlib import Path

        from pyspark import TaskContext

        end = time.monotonic() + DEADLINE
        for other in first.get(TaskContext.get().partitionId(), ()):
            while not any(Path(place).glob(f"*/{other:05d}-*/*.mds")):
                assert time.monotonic() < end, "the other task never stored anything"
                time.sleep(0.01)
        yield from batches

    return frame.mapInArrow(wait, frame.schema)


def by_first_shard(out, shards):
    """Return the tasks in the order of their first stored shard."""
    stored = {}
    for shard in shards:
        task = int(shard.raw.basename.split("/")[1][:5])
        when = (out / shard.raw.basename).stat().st_mtime_ns
        stored[task] = min(when, stored.get(task, when))
    return sorted(stored, key=stored.get)


@pytest.mark.spark
@pytest.mark.slow
def test_h11_tasks_that_finish_in_another_order_make_the_same_shards_and_the_same_epochs(spark, tmp_path):
    """Once task 0 finishes last, while the others use the second core; once they finish in order."""
    frame = spark.range(0, 500, 1, TASKS)
    last = {0: tuple(range(1, TASKS))}
    in_turn = {task: (task - 1,) for task in range(1, TASKS)}
    found = {}
    for name, first in (("last", last), ("turn", in_turn)):
        out = tmp_path / name
        dataframe_to_mds(delayed(frame, out, first), out, compression=None, size_limit=512)
        found[name] = load_manifest(open_store(out)).shards
    assert by_first_shard(tmp_path / "last", found["last"])[-1] == 0
    assert by_first_shard(tmp_path / "turn", found["turn"]) == list(range(TASKS))
    assert contents(found["last"]) == contents(found["turn"])
    assert len(found["last"]) > 2 * TASKS
    first, second = epochs(tmp_path / "last")
    assert (first, second) == tuple(epochs(tmp_path / "turn"))
    assert sorted(first) == sorted(second) == list(range(500))
    assert first != second
