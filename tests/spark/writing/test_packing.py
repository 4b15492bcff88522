"""Joining of small last shards of neighbouring tasks: which are joined, in what order, and failures."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from smalti.catalog import new_write_id
from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.errors import SmaltiError, StoreError, StoreNotFound
from smalti.format import FileInfo, Schema, Shard, ShardInfo, ShardOptions
from smalti.spark.added_columns import _in_order
from smalti.spark.prepared.table import parts_of
from smalti.storage import LocalStore
from smalti.writer.tables.plan import Attempt, InputRows, OutputColumns, WritePlan
from smalti.writer.tables.task import write_shards
from smalti.writer.tables.versions import (
    Packed,
    TaskShards,
    collect_parts,
    delete_all,
    find_runs,
    join_rows,
    join_runs,
    join_shards,
)

SCHEMA = Schema.from_columns({"id": "int64"})
HEAD = 170
"""Bytes of a shard of SCHEMA with limit 1000, without samples: a count, one offset, and its JSON of 162 characters."""
MAX_SAMPLE_BYTES = 512 - 169
"""Bytes for samples in a shard with limit 512, whose JSON is one character shorter."""


def plan(store, *, size_limit=512, partition_by=None, compression=None):
    rows = InputRows(("id", partition_by) if partition_by else ("id",), partition_by=partition_by)
    return WritePlan(store, new_write_id(), ShardOptions(compression, (), size_limit), rows, OutputColumns(SCHEMA))


def part(task, num_bytes, *, split=None, count=1, size_limit=1000):
    """Return the shards of a task: `count`, the last of which has `num_bytes` bytes."""
    return TaskShards(split, task, count, ShardInfo(SCHEMA, 1, FileInfo("x.mds", num_bytes), size_limit=size_limit), "")


def runs_of(parts):
    return [[part.task for part in run] for run in find_runs(parts)]


def written(store, rows_of_tasks, **options):
    """Write shards of tasks with these numbers of rows, of consecutive ids; return the plan, and the parts in order."""
    made, answers, start = plan(store, **options), [], 0
    for task, rows in enumerate(rows_of_tasks):
        columns = {"id": pa.array(range(start, start + rows), pa.int64())}
        if made.input.partition_by:
            columns["s"] = pa.array([("odd" if n % 2 else "even") for n in range(start, start + rows)])
        attempt = Attempt.new(task)
        answers.append((attempt, write_shards(made, iter([pa.RecordBatch.from_pydict(columns)]), attempt)))
        start += rows
    return made, collect_parts(answers)


def joined(made, parts):
    """Return the shards of the version, as a list and packed."""
    runs = find_runs(parts)
    packed = Packed(parts, runs, join_runs(made, runs, None))
    return list(packed.shards), packed


def ids(folder, shards):
    found = []
    for info in shards:
        shard = Shard.open(folder / info.raw.basename, info)
        found += shard.batch(np.arange(len(shard)))["id"].tolist()
        shard.close()
    return found


# ---------------------------------------------------------------- which shards are joined


def test_the_bytes_of_an_empty_shard_are_counted(tmp_path):
    """A shard of one 8 byte number has its head, 4 bytes of offset and 8 bytes of number."""
    _, (only,) = written(LocalStore(tmp_path), [1], size_limit=1000)
    assert only.tail.raw.num_bytes == HEAD + 4 + 8


def test_last_shards_that_follow_each_other_are_joined_as_far_as_the_limit_allows():
    small = HEAD + 300  # 300 bytes of samples: two fit 1000 with one head, three do not
    assert runs_of([part(task, small) for task in range(5)]) == [[0, 1], [2, 3]]
    exact = (1000 - HEAD) // 2
    assert runs_of([part(0, HEAD + exact), part(1, HEAD + exact)]) == [[0, 1]]
    assert runs_of([part(0, HEAD + exact), part(1, HEAD + exact + 1)]) == []


def test_full_shards_in_between_prevent_a_join_so_that_rows_keep_their_order():
    assert runs_of([part(0, 300), part(1, 300, count=2), part(2, 300), part(3, 300, count=3)]) == [[1, 2]]


def test_splits_are_not_mixed():
    parts = [part(0, 300, split="a"), part(1, 300, split="a"), part(0, 300, split="b"), part(1, 300, split="b")]
    assert runs_of(parts) == [[0, 1], [0, 1]]
    assert runs_of(parts[1:3]) == []


def test_without_a_size_limit_nothing_is_joined():
    assert runs_of([part(0, 300, size_limit=None), part(1, 300, size_limit=None)]) == []


@pytest.mark.parametrize("rows_of_tasks", [[1] * 100, [3, 0, 40, 1, 1, 90, 2], [25, 26, 27] * 5, [1000], [60] * 20])
def test_shards_are_on_average_more_than_half_full_however_rows_are_partitioned(tmp_path, rows_of_tasks):
    made, parts = written(LocalStore(tmp_path), rows_of_tasks)
    shards, _ = joined(made, parts)
    assert ids(tmp_path, shards) == list(range(sum(rows_of_tasks)))
    content = [info.raw.num_bytes - 169 for info in shards]
    assert max(content) <= MAX_SAMPLE_BYTES
    if len(content) > 1:
        assert (
            sum(content) / len(content) > (MAX_SAMPLE_BYTES - 12) / 2
        )  # a further sample of 12 bytes would not have fitted


# ---------------------------------------------------------------- how they are joined


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_two_hundred_tasks_with_three_rows_make_one_shard(tmp_path, compression):
    store = LocalStore(tmp_path)
    rows = [1 if task in (0, 77, 199) else 0 for task in range(200)]
    made, parts = written(store, rows, compression=compression)
    (info,), packed = joined(made, parts)
    assert info.samples == 3
    delete_all(store, packed.unused_keys())
    assert [item.key for item in store.list()] == [info.stored.basename]


def test_shards_of_each_split_are_joined_in_its_folder(tmp_path):
    made, parts = written(LocalStore(tmp_path), [4, 4, 4], partition_by="s", size_limit=4096)
    (even, odd), _ = joined(made, parts)
    assert (even.partition, odd.partition) == ("even", "odd")
    assert even.raw.basename.startswith(f"even/{made.write_id}/joined-")
    assert ids(tmp_path, [even]) == [0, 2, 4, 6, 8, 10]
    assert ids(tmp_path, [odd]) == [1, 3, 5, 7, 9, 11]


def test_shards_joined_by_a_task_equal_those_joined_by_the_driver(tmp_path):
    made, parts = written(LocalStore(tmp_path), [4, 4, 4], partition_by="s", size_limit=4096)
    runs = find_runs(parts)
    texts = [pack_shards([part.tail for part in run]) for run in runs]
    answer = join_rows(made, enumerate(texts), Attempt.new(0))
    by_task = [unpack_shards(text, where="here")[0] for _, text in answer["joined"]]
    by_driver = join_runs(made, runs, None)
    assert [info.partition for info in by_task] == ["even", "odd"]
    for one, other in zip(by_task, by_driver, strict=True):
        assert one.raw.basename != other.raw.basename
        assert (tmp_path / one.raw.basename).read_bytes() == (tmp_path / other.raw.basename).read_bytes()


def test_a_second_attempt_can_read_everything_that_the_first_one_read(tmp_path):
    """Joined shards are deleted after publishing, so that a joining task can be tried again."""
    made, parts = written(LocalStore(tmp_path), [4, 4])
    infos = [part.tail for part in parts]
    first, second = (join_shards(made, infos, 0, Attempt.new(0)) for _ in range(2))
    assert first.raw.basename != second.raw.basename
    assert ids(tmp_path, [second]) == list(range(8))


def test_a_missing_shard_fails_the_join_and_leaves_nothing_new(tmp_path):
    store = LocalStore(tmp_path)
    made, parts = written(store, [4, 4, 4])
    store.delete(parts[2].tail.raw.basename)
    before = sorted(item.key for item in store.list())
    with pytest.raises(StoreNotFound):
        joined(made, parts)
    assert sorted(item.key for item in store.list()) == before


def test_failures_to_delete_joined_shards_are_ignored(tmp_path):
    class Keeps(LocalStore):
        def delete(self, key):
            raise StoreError(f"{key} stays")

    store = Keeps(tmp_path)
    made, parts = written(store, [4, 4])
    _, packed = joined(made, parts)
    delete_all(store, packed.unused_keys())
    assert len(list(store.list())) == 3


def test_an_answer_that_another_task_gave_is_refused_wherever_tasks_answer(tmp_path):
    store = LocalStore(tmp_path)
    made, parts = written(store, [3, 3])
    first, second = (Attempt(part.task, part.tail.raw.basename.split("/")[-2].partition("-")[2]) for part in parts)
    answers = [(first, {"shards": parts[1].packed}), (second, {"shards": parts[0].packed})]
    with pytest.raises(SmaltiError, match=r"answer of task 0 names .*/00001-.*, expected .* 00000-"):
        collect_parts(answers)
    big = [[replace(part, tail=replace(part.tail, raw=replace(part.tail.raw, num_bytes=1 << 30)))] for part in parts]

    def answer_exchanged(plan, rows):
        attempt = Attempt.new(0)
        texts = [(place, pack_shards([part.tail])) for place, part in enumerate(parts)]
        answer = join_rows(plan, texts, attempt)
        return [(attempt, {"joined": [[1 - place, text] for place, text in answer["joined"]]})]

    with pytest.raises(SmaltiError, match=r"answer of task 0 names .*/joined-0000[01]-"):
        join_runs(made, big, answer_exchanged)
    columns = [
        (first, {"shards": [[0, parts[1].tail.to_json()]]}),
        (second, {"shards": [[1, parts[0].tail.to_json()]]}),
    ]
    with pytest.raises(SmaltiError, match="answer of task 0 names"):
        _in_order(columns, [])
    prepared = [(first, {"parts": parts[1].packed})]
    with pytest.raises(SmaltiError, match="answer of task 0 names"):
        parts_of(prepared)
