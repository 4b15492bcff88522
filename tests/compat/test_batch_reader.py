"""make_batch_reader: each row once, in an order of the data's own, on any world, and from any place on."""

import json
import time
import warnings
from functools import cache
from itertools import chain
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.compat.petastorm import NoDataAvailableError, TransformSpec, in_lambda, make_batch_reader
from smalti.compat.petastorm.reading import parquet as parquet_set
from smalti.compat.petastorm.unischema import UnischemaField
from smalti.errors import (
    ChecksumMismatch,
    CursorError,
    FormatError,
    SchemaError,
    SmaltiError,
    StoreNotFound,
    WorldMismatch,
)
from smalti.storage import open_store
from tests.compat.parquet_files import flat, ids_of, url, write_rows

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """120 rows in 3 files of 4 row groups."""
    return write_rows(tmp_path_factory.mktemp("rows") / "set")


def read(where, **options):
    with make_batch_reader(url(where), **{"seed": 7, "batch_size": 8} | options) as reader:
        return ids_of(reader)


def test_an_epoch_has_every_row_once_and_not_in_stored_order(folder):
    rows = flat(read(folder))
    assert sorted(rows) == list(range(120))
    assert rows != sorted(rows)


def test_without_a_shuffle_rows_come_as_they_are_stored(folder):
    assert read(folder, shuffle_row_groups=False)[:2] == [list(range(8)), list(range(8, 16))]


def test_rows_of_a_row_group_keep_their_order_where_only_groups_are_shuffled(folder):
    rows = flat(read(folder, shuffle_rows=False))
    groups = [rows[at : at + 10] for at in range(0, 120, 10)]
    assert all(group == list(range(group[0], group[0] + 10)) for group in groups)
    assert [group[0] for group in groups] != list(range(0, 120, 10))


def test_the_same_seed_gives_the_same_order_and_another_one_another(folder):
    assert read(folder) == read(folder)
    assert flat(read(folder)) != flat(read(folder, seed=8))


def test_threads_and_batch_size_do_not_change_the_order(folder):
    orders = [
        flat(read(folder, workers_count=3)),
        flat(read(folder, reader_pool_type="dummy")),
        flat(read(folder, batch_size=50)),
    ]
    assert orders == [flat(read(folder))] * 3


def test_epochs_differ_and_are_counted(folder):
    rows = flat(read(folder, num_epochs=2))
    assert sorted(rows) == sorted([*range(120), *range(120)])
    assert rows[:120] != rows[120:]


def test_the_last_batch_is_short(folder):
    assert [len(batch) for batch in read(folder, batch_size=50)] == [50, 50, 20]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_ranks_divide_an_epoch_and_take_equally_many_steps(folder, count):
    """120 rows are 7.5, 5 and 3 whole steps of 8 rows for each of 2, 3 and 5 ranks."""
    parts = [read(folder, cur_shard=rank, shard_count=count) for rank in range(count)]
    assert sorted(flat(chain(*parts))) == list(range(120))
    assert {len(part) for part in parts} == {{2: 8, 3: 5, 5: 3}[count]}


def test_more_ranks_than_row_groups_is_no_error(folder):
    """Petastorm refuses more shards than row groups, of which there are 12."""
    parts = [read(folder, cur_shard=rank, shard_count=20, batch_size=2) for rank in range(20)]
    assert sorted(flat(chain(*parts))) == list(range(120))


def test_a_rank_that_has_run_dry_takes_a_repeat_so_that_steps_stay_equal(tmp_path):
    where = write_rows(tmp_path / "few", files=1, rows=5, group=5)
    parts = [read(where, cur_shard=rank, shard_count=4, batch_size=2) for rank in range(4)]
    assert [len(part) for part in parts] == [1, 1, 1, 1]
    assert set(flat(chain(*parts))) == set(range(5))


def test_a_repeat_that_fills_a_step_is_marked(tmp_path):
    """5 rows for 4 ranks with 2 rows each: the last rank's turn begins at position 3, and then there is nothing."""
    where = write_rows(tmp_path / "few", files=1, rows=5, group=5)
    told = []
    for rank in range(4):
        with make_batch_reader(
            url(where), cur_shard=rank, shard_count=4, batch_size=2, tail="pad", include_ids=True, seed=1
        ) as reader:
            told += [batch["_position"].tolist() for batch in reader.batches()]
    assert told == [[0, 4], [1, -1], [2, -1], [3, -1]]


def test_batches_without_an_end_are_whole_and_epochs_go_on(folder):
    with make_batch_reader(url(folder), seed=7, batch_size=50, num_epochs=None) as reader:
        batches = [ids_of([next(reader)])[0] for _ in range(7)]
    assert [len(batch) for batch in batches] == [50] * 7
    assert set(flat(batches[:3])) == set(flat(batches[3:6])) == set(range(120))


def test_readers_without_a_seed_go_on_with_the_next_epoch(tmp_path):
    """A loop that opens a reader for each epoch would otherwise meet the same order each time."""
    where = write_rows(tmp_path / "own", files=2)
    first, second = (flat(read(where, seed=None)) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(80))
    assert first != second
    assert second == flat(read(where, seed=None, epoch=1))


@cache
def order_of(folder, whole):
    return flat(read(folder, seed=3, batch_size=120, shuffle_rows=None if whole else False))


@pytest.mark.slow
@settings(max_examples=10)
@given(
    st.integers(0, 10),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(3, 40),
    st.booleans(),
)
def test_prefix_and_rest_are_the_uninterrupted_order_on_any_world(folder, steps, before, after, batch_size, whole):
    options = {"seed": 3, "shuffle_rows": None if whole else False, "reader_pool_type": "dummy"}
    expected = order_of(folder, whole)
    taken, state = {}, None
    for rank in range(before):
        with make_batch_reader(url(folder), cur_shard=rank, shard_count=before, batch_size=7, **options) as reader:
            took = min(steps, reader.steps_per_epoch - 1)
            taken |= {(step, rank): flat(ids_of([next(reader)])) for step in range(took)}
            assert state in (None, json.loads(json.dumps(reader.state_dict())))
            state = json.loads(json.dumps(reader.state_dict()))
    rest = []
    for rank in range(after):
        with make_batch_reader(
            url(folder), cur_shard=rank, shard_count=after, batch_size=batch_size, include_ids=True, **options
        ) as reader:
            reader.load_state_dict(state)
            rest += [
                (int(position), int(row))
                for batch in reader.batches()
                for position, row in zip(batch["_position"], batch["id"], strict=True)
                if position >= 0  # a repeat, so that steps stay equal
            ]
    begun = flat(taken.values())
    assert sorted(begun) == sorted(expected[: len(begun)])
    assert [row for _, row in sorted(rest)] == expected[len(begun) :]


def test_a_state_after_the_last_batch_says_that_all_was_read(folder):
    with make_batch_reader(url(folder), seed=7, batch_size=8) as reader:
        list(reader)
        state = reader.state_dict()
    assert (state["epoch"], state["sample_in_epoch"]) == (1, 0)
    with make_batch_reader(url(folder), seed=7, batch_size=8) as reader:
        reader.load_state_dict(state)
        assert list(reader) == []


def test_a_state_of_other_files_is_refused(folder, tmp_path):
    other = write_rows(tmp_path / "other", files=2)
    with make_batch_reader(url(other)) as reader:
        state = reader.state_dict()
    with make_batch_reader(url(folder)) as reader, pytest.raises(CursorError, match="Parquet files and rows"):
        reader.load_state_dict(state)


def test_a_state_of_another_choice_of_rows_is_refused(folder):
    with make_batch_reader(url(folder), filters=[("id", "<", 60)]) as reader:
        state = reader.state_dict()
    with make_batch_reader(url(folder), filters=[("id", ">=", 60)]) as reader, pytest.raises(CursorError):
        reader.load_state_dict(state)


@pytest.mark.parametrize("damage", [{"petastorm": None}, {"epoch": -1}, {"smalti": {}}])
def test_a_damaged_state_is_refused(folder, damage):
    with make_batch_reader(url(folder)) as reader, pytest.raises(CursorError):
        reader.load_state_dict(reader.state_dict() | damage)


def test_a_reader_begins_anew_after_its_last_row_and_not_before(folder):
    with make_batch_reader(url(folder), seed=7, batch_size=64) as reader:
        first = ids_of([next(reader)])
        with pytest.raises(NotImplementedError):
            reader.reset()
        first += ids_of(reader)
        reader.reset()
        second = ids_of(reader)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(120))
    assert first != second


def test_a_stopped_reader_says_so(folder):
    with make_batch_reader(url(folder)) as reader:
        next(reader)
    with pytest.raises(RuntimeError, match="stopped"):
        next(reader)


# ---------------------------------------------------------------- which rows, which columns


def test_a_predicate_leaves_rows_out_before_steps_are_counted(folder):
    options = {"predicate": in_lambda(["id"], lambda ids: ids % 3 == 0), "batch_size": 4}
    parts = [read(folder, cur_shard=rank, shard_count=2, **options) for rank in range(2)]
    assert sorted(flat(chain(*parts))) == list(range(0, 120, 3))
    assert [len(part) for part in parts] == [5, 5]


def test_filters_are_exact_row_by_row_and_combine(folder):
    rows = flat(read(folder, filters=[[("id", ">=", 15), ("id", "<", 18)], [("id", "==", 99)]]))
    assert sorted(rows) == [15, 16, 17, 99]


def test_a_predicate_and_filters_both_hold(folder):
    rows = flat(read(folder, filters=[("id", "<", 30)], predicate=in_lambda(["id"], lambda ids: ids % 10 == 4)))
    assert sorted(rows) == [4, 14, 24]


def test_a_predicate_that_leaves_nothing_is_an_error_and_no_endless_epoch(folder):
    with pytest.raises(NoDataAvailableError, match="no row"):
        make_batch_reader(url(folder), predicate=in_lambda(["id"], lambda ids: ids < 0), num_epochs=None)


def test_a_predicate_must_answer_for_each_row(folder):
    with pytest.raises(SchemaError, match="one per row"):
        make_batch_reader(url(folder), predicate=in_lambda(["id"], lambda ids: True))


def test_columns_are_chosen_by_patterns_that_match_whole(tmp_path):
    where = write_rows(tmp_path / "wide", files=1, rows=3, group=3, value=float, values=float, text=str)
    with make_batch_reader(url(where), schema_fields=["id", "val.e"]) as reader:
        assert next(reader)._fields == ("id", "value")
    with make_batch_reader(url(where), schema_fields=[]) as reader:  # as in Petastorm
        assert next(reader)._fields == ("id", "value", "values", "text")
    with pytest.raises(RuntimeError, match="no column matches"):  # the class that Petastorm raises
        make_batch_reader(url(where), schema_fields=["i"])
    with pytest.raises(ValueError, match="there is no column 'x', which `schema_fields` names"):
        make_batch_reader(url(where), schema_fields=["id", UnischemaField("x", int, ())])


def test_folders_that_say_values_give_columns(tmp_path):
    for year in (2019, 2020):
        write_rows(tmp_path / "by" / f"year={year}", files=1, rows=4, group=2)
    with make_batch_reader(url(tmp_path / "by"), batch_size=8, filters=[("year", "=", 2020)]) as reader:
        batch = next(reader)
    assert (sorted(batch.id), set(batch.year)) == ([0, 1, 2, 3], {2020})


@pytest.mark.parametrize("name", ["team#1", "a%20b", "a b", "50%", "x?y", "run[1]", "a%2Fb", "schön"])
def test_names_of_local_folders_and_files_are_names(tmp_path, name):
    where = write_rows(tmp_path / name / f"{name}.d", files=1, rows=3, group=3)
    other = write_rows(tmp_path / "other" / "a b" / "a b.d", files=1, rows=9, group=3)
    assert other != where
    file = where / "part-00000.parquet"
    for place in (f"file://{where}", f"file:{where}", str(where), f"file://{file}", str(file), [f"file://{file}"]):
        with make_batch_reader(place, shuffle_row_groups=False) as reader:
            assert flat(ids_of(reader)) == [0, 1, 2]


def test_addresses_of_files_as_spark_lists_them_are_decoded(tmp_path):
    write_rows(tmp_path / "a b", files=1, rows=3, group=3)
    with make_batch_reader([f"file://{tmp_path}/a%20b/part-00000.parquet"], shuffle_row_groups=False) as reader:
        assert flat(ids_of(reader)) == [0, 1, 2]


def test_the_address_of_one_file_can_be_given_as_text(folder):
    with make_batch_reader(f"file://{folder}/part-00002.parquet", shuffle_row_groups=False) as reader:
        assert flat(ids_of(reader)) == list(range(80, 120))
    store = open_store("memory://petastorm-file/set")
    store.put("a.parquet", (folder / "part-00001.parquet").read_bytes())
    with make_batch_reader("memory://petastorm-file/set/a.parquet", shuffle_row_groups=False) as reader:
        assert flat(ids_of(reader)) == list(range(40, 80))
    with pytest.raises(StoreNotFound, match="no Parquet files found"):
        make_batch_reader(f"file://{folder}/part-00009.parquet")


def test_files_can_be_named_one_by_one(folder):
    named = [f"file://{folder}/part-00002.parquet", f"file://{folder}/part-00000.parquet"]
    with make_batch_reader(named, batch_size=80, shuffle_row_groups=False) as reader:
        assert ids_of(reader) == [[*range(80, 120), *range(40)]]


def test_spark_own_files_beside_the_data_are_not_read(tmp_path):
    where = write_rows(tmp_path / "set", files=1, rows=2, group=2)
    for name in ("_SUCCESS", ".part-00000.parquet.crc", "_temporary/0/part-9.parquet"):
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(b"not Parquet")
    assert sorted(flat(read(where))) == [0, 1]


# ---------------------------------------------------------------- faults


def test_nothing_there_says_so(tmp_path):
    with pytest.raises(StoreNotFound, match="no Parquet files found"):
        make_batch_reader(url(tmp_path / "nothing"))


def test_a_file_that_is_named_and_missing_says_which(folder):
    with pytest.raises(StoreNotFound, match=r"1 of 2 files.*part-7"):
        make_batch_reader([f"file://{folder}/part-00000.parquet", f"file://{folder}/part-7.parquet"])


def test_a_file_that_grows_while_another_is_awaited_is_read_whole(tmp_path, monkeypatch):
    first, second = sorted(write_rows(tmp_path, files=2).iterdir())
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    second.rename(tmp_path / "later")

    def all_arrive(seconds):
        first.write_bytes(whole)
        (tmp_path / "later").rename(second)

    monkeypatch.setattr(parquet_set, "time", SimpleNamespace(monotonic=time.monotonic, sleep=all_arrive))
    with make_batch_reader([url(first), url(second)], file_wait_seconds=60.0) as reader:
        assert sorted(flat(ids_of(reader))) == list(range(80))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-30], "is incomplete"),
        (lambda data: data[:4] + b"\xff" * (len(data) - 12) + data[-8:], "footer is damaged"),
        (
            lambda data: data[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
            "footer is damaged",
        ),
        (lambda data: b"", "is incomplete"),
        (lambda data: data[:-4] + b"PARE", "encrypted"),
    ],
    ids=["cut off", "junk", "lying length", "empty", "encrypted"],
)
def test_a_damaged_footer_is_told_when_the_reader_is_opened(tmp_path, damage, said):
    where = write_rows(tmp_path / "set", files=2)
    path = where / "part-00001.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SmaltiError, match=f"part-00001.*{said}"):
        make_batch_reader(url(where))


def test_a_damaged_page_is_told_by_its_checksum(tmp_path):
    where = write_rows(tmp_path / "set", files=1)
    path = where / "part-00000.parquet"
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(1).column(0)
    data[chunk.dictionary_page_offset + chunk.total_compressed_size - 5] ^= 1
    path.write_bytes(data)
    with make_batch_reader(url(where)) as reader, pytest.raises(FormatError, match=r"row group 1 of .*part-00000"):
        list(reader)


def test_a_file_that_is_replaced_between_planning_and_reading_is_told(tmp_path):
    where = write_rows(tmp_path / "set", files=1)
    with make_batch_reader(url(where)) as reader:
        write_rows(where, files=1, rows=80)
        with pytest.raises(ChecksumMismatch, match="changed since this reader was opened"):
            next(reader)


def test_a_file_of_the_same_length_and_other_rows_is_told(tmp_path):
    """Its size is equal; the extremes in its footer are not."""
    path, plain = tmp_path / "part-0.parquet", {"compression": "none", "use_dictionary": False}
    pq.write_table(pa.table({"id": range(1000, 1040)}), path, **plain)
    size = path.stat().st_size
    with make_batch_reader(url(tmp_path)) as reader:
        pq.write_table(pa.table({"id": range(2000, 2040)}), path, **plain)
        assert path.stat().st_size == size
        with pytest.raises(ChecksumMismatch):
            next(reader)


def test_a_file_that_is_removed_after_planning_is_told(tmp_path):
    where = write_rows(tmp_path / "set", files=1)
    with make_batch_reader(url(where)) as reader:
        (where / "part-00000.parquet").unlink()
        with pytest.raises(StoreNotFound):
            next(reader)


def test_files_with_other_columns_are_refused(tmp_path):
    where = write_rows(tmp_path / "set", files=2)
    pq.write_table(pa.table({"id": ["a"]}), where / "part-00009.parquet")
    with pytest.raises(SchemaError, match=r"part-00009.*id: (int64|string)"):
        make_batch_reader(url(where))


def test_an_iceberg_table_whose_folder_holds_removed_files_is_refused(tmp_path):
    where = write_rows(tmp_path / "table", files=1)
    (where / "metadata").mkdir()
    (where / "metadata" / "v1.metadata.json").write_text("{}")
    with pytest.raises(FormatError, match="is an Iceberg table"):
        make_batch_reader(url(where))


# ---------------------------------------------------------------- worlds and arguments


@pytest.mark.parametrize("numbers", [(0, None), (None, 2), (2, 2), (-1, 2), ("0", 2), (True, 2)])
def test_shards_that_make_no_sense_are_refused(folder, numbers):
    with pytest.raises(ValueError, match="shard"):
        make_batch_reader(url(folder), cur_shard=numbers[0], shard_count=numbers[1])


@pytest.mark.parametrize(
    "names",
    [("RANK", "WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")],
)
def test_a_rank_that_takes_the_shard_of_another_is_refused(folder, monkeypatch, names):
    monkeypatch.setenv(names[0], "1")
    monkeypatch.setenv(names[1], "2")
    with pytest.raises(WorldMismatch, match="rank 1 of 2"):
        make_batch_reader(url(folder), cur_shard=0, shard_count=2)
    with make_batch_reader(url(folder), cur_shard=1, shard_count=2) as reader:
        assert reader.world.rank == 1


def test_a_launcher_that_the_reader_was_not_told_of_is_a_warning(folder, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.warns(UserWarning, match="each rank reads all rows"):
        make_batch_reader(url(folder)).stop()
    with pytest.warns(UserWarning, match="several ranks read the same rows"):
        make_batch_reader(url(folder), cur_shard=1, shard_count=2).stop()


@pytest.mark.parametrize(
    "options",
    [
        {"num_epochs": 0},
        {"workers_count": 0},
        {"batch_size": 0},
        {"reader_pool_type": "fork"},
        {"cache_type": "redis"},
        {"cache_type": "local-disk"},
        {"shuffle_rows": True, "shuffle_row_groups": False},
        {"rowgroup_selector": object()},
        {"schema_fields": "id"},
        {"schema_fields": ["("]},
        {"filters": "id > 3"},
        {"tail": "long"},
        {"transform_spec": object()},
    ],
    ids=lambda options: "-".join(
        f"{name}-{value if isinstance(value, str | int) else type(value).__name__}" for name, value in options.items()
    ),
)
def test_arguments_out_of_range_are_refused_by_name(folder, options):
    with pytest.raises(ValueError, match=r"`|=|'"):
        make_batch_reader(url(folder), **options)


# ---------------------------------------------------------------- memory


def test_held_row_groups_stay_within_the_bound(tmp_path):
    """64 row groups of 80 kB, of which two fit; without a shuffle each is still read once."""
    where = write_rows(tmp_path / "set", files=4, rows=160, group=10, data=lambda row: bytes([row % 256]) * 8000)
    with make_batch_reader(url(where), batch_size=16, held_bytes=200_000, shuffle_row_groups=False) as reader:
        assert flat(ids_of(reader)) == list(range(640))
    assert reader.diagnostics["row_groups_read"] == 64
    assert 0 < reader.diagnostics["most_bytes_held"] <= 200_000


def test_a_row_group_that_the_cache_has_evicted_leaves_the_memory_before_the_transform(tmp_path):
    where = write_rows(tmp_path / "set", files=1, rows=10, data=lambda row: bytes([row]) * 100_000)
    before, during = pa.total_allocated_bytes(), []

    def measure(frame):
        reader._rows.held.clear()
        during.append(pa.total_allocated_bytes() - before)
        return frame

    spec = TransformSpec(measure)
    with make_batch_reader(url(where), batch_size=1, reader_pool_type="dummy", transform_spec=spec) as reader:
        assert len(flat(ids_of(reader))) == 10
    assert max(during) < 500_000


def test_an_order_that_would_read_row_groups_again_is_told_when_opened(tmp_path):
    where = write_rows(tmp_path / "set", files=2, rows=160, group=10, data=lambda row: bytes(1000))
    with pytest.warns(UserWarning, match="read several times"):
        make_batch_reader(url(where), held_bytes=1000).stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_batch_reader(url(where)).stop()


def test_each_row_group_is_read_once_in_an_epoch_by_each_rank_that_needs_it(folder):
    with make_batch_reader(url(folder), seed=1, batch_size=8, workers_count=4) as reader:
        list(reader)
    assert reader.diagnostics["row_groups_read"] == 12
