"""DataLoader, BatchedDataLoader and InMemBatchedDataLoader over a reader."""

import json
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401 -- makes the backend known

from smalti.compat.petastorm import BatchedDataLoader, DataLoader, InMemBatchedDataLoader, make_batch_reader
from smalti.errors import CursorError
from smalti.torch import ranks
from tests.compat.parquet_files import flat, ids_of, url, write_rows

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("error")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows") / "set", x=float)


def loader_of(folder, kind=DataLoader, loader_options=(), **options):
    return kind(make_batch_reader(url(folder), **{"seed": 5} | options), **dict(loader_options))


def stored(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    return loader_of(tmp_path, loader_options={"batch_size": 10}, shuffle_row_groups=False)


def test_batches_are_tensors_and_the_last_one_is_short(folder):
    with loader_of(folder, loader_options={"batch_size": 50}) as loader:
        batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == [50, 50, 20]
    assert {batch["x"].dtype for batch in batches} == {torch.float64}
    assert sorted(flat(ids_of(batches))) == list(range(120))
    assert all((batch["id"].double() == batch["x"]).all() for batch in batches)


def test_types_that_petastorm_promotes_are_promoted(tmp_path):
    loader = stored(
        tmp_path,
        flag=[True, False],
        short=pa.array([1, 65535], pa.uint16()),
        word=pa.array([1, 2**32 - 1], pa.uint32()),
        byte=pa.array([-1, 1], pa.int8()),
    )
    (batch,) = loader
    loader.reader.stop()
    assert {name: (str(each.dtype), each.tolist()) for name, each in batch.items()} == {
        "flag": ("torch.uint8", [1, 0]),
        "short": ("torch.int32", [1, 65535]),
        "word": ("torch.int64", [1, 2**32 - 1]),
        "byte": ("torch.int8", [-1, 1]),
    }


def test_text_bytes_and_decimals_stay_lists(tmp_path):
    with stored(tmp_path, t=["a", "b"], b=[b"1", b""], d=[Decimal("1.5"), Decimal("2.5")]) as loader:
        assert list(loader) == [{"t": ["a", "b"], "b": [b"1", b""], "d": [Decimal("1.5"), Decimal("2.5")]}]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, None], "holds None"),
        (["a", None], "holds None"),
        ([[1], [1, 2]], "different shapes"),
        ([date(2020, 1, 1), date(2020, 1, 2)], "holds times"),
        ([{"a": 1}, {"a": 2}], "Python objects"),
    ],
    ids=["number", "text", "lists", "dates", "structs"],
)
def test_what_torch_has_no_type_for_is_a_type_error_that_names_the_column(tmp_path, values, said):
    with stored(tmp_path, col=values) as loader, pytest.raises(TypeError, match=f"'col'.*{said}"):
        list(loader)


def test_a_collate_function_gets_rows(folder):
    def collate(rows):
        return [(int(row["id"]), float(row["x"])) for row in rows]

    with loader_of(folder, loader_options={"batch_size": 3, "collate_fn": collate}) as loader:
        batch = next(iter(loader))
    assert len(batch) == 3
    assert all(x == float(row) for row, x in batch)


def test_a_second_pass_in_the_middle_of_one_is_refused_and_after_a_whole_one_reads_the_next_epoch(folder):
    with loader_of(folder, loader_options={"batch_size": 40}) as loader:
        first = iter(loader)
        next(first)
        with pytest.raises(RuntimeError, match="finish the current pass"):
            next(iter(loader))
        list(first)
        second, third = ids_of(loader), ids_of(loader)
    assert sorted(flat(second)) == sorted(flat(third)) == list(range(120))
    assert second != third


def test_after_an_error_each_new_pass_tells_of_it(tmp_path):
    with stored(tmp_path, col=[1, None]) as loader:
        with pytest.raises(TypeError):
            list(loader)
        with pytest.raises(RuntimeError, match="holds None"):
            next(iter(loader))


def test_a_pass_that_was_left_early_goes_on_where_it_was_left(folder):
    """Petastorm would raise here; nothing is lost or read twice this way."""
    with loader_of(folder, loader_options={"batch_size": 40}) as loader:
        rows = []
        for batch in loader:
            rows += ids_of([batch])
            break
        rows += ids_of(loader)
    assert sorted(flat(rows)) == list(range(120))


def test_a_loader_goes_on_from_a_state_on_other_ranks_with_another_batch_size(folder):
    with loader_of(folder, loader_options={"batch_size": 16}) as loader:
        whole = flat(ids_of(loader))
    with loader_of(folder, loader_options={"batch_size": 16}) as loader:
        stream = iter(loader)
        begun = flat(ids_of([next(stream), next(stream)]))
        state = json.loads(json.dumps(loader.state_dict()))
    rest = []
    for rank in range(2):
        with loader_of(folder, loader_options={"batch_size": 11}, cur_shard=rank, shard_count=2) as loader:
            loader.load_state_dict(state)
            rest.append(flat(ids_of(loader)))
    assert begun == whole[:32]
    assert sorted(flat(rest)) == sorted(whole[32:])
    assert [len(part) for part in rest] == [44, 44]


def test_a_shuffling_queue_mixes_rows_where_row_groups_alone_would_be_shuffled(folder):
    plain = {"shuffle_rows": False}
    with loader_of(folder, loader_options={"batch_size": 10}, **plain) as loader:
        groups = ids_of(loader)
    with loader_of(folder, loader_options={"batch_size": 10, "shuffling_queue_capacity": 60}, **plain) as loader:
        mixed = ids_of(loader)
    assert all(group == list(range(group[0], group[0] + 10)) for group in groups)
    assert not any(batch == sorted(batch) for batch in mixed)
    assert sorted(flat(mixed)) == list(range(120))


def test_a_shuffling_queue_without_a_shuffle_is_refused(folder):
    with pytest.raises(ValueError, match="shuffle_row_groups"):
        loader_of(folder, loader_options={"shuffling_queue_capacity": 5}, shuffle_row_groups=False)


def test_the_batched_loader_takes_numbers_alone(folder, tmp_path):
    made = {"batch_size": 50, "transform_fn": lambda array: torch.as_tensor(array) + 1}
    with loader_of(folder, BatchedDataLoader, made) as loader:
        assert sorted(flat(ids_of(loader))) == list(range(1, 121))
    pq.write_table(pa.table({"t": ["a"]}), tmp_path / "a.parquet")
    with loader_of(tmp_path, BatchedDataLoader) as loader, pytest.raises(TypeError, match="use DataLoader"):
        list(loader)


def test_the_loader_in_memory_keeps_some_rows_and_shuffles_them_by_seed(folder):
    def epochs(**options):
        chosen = {"batch_size": 25, "rows_capacity": 60, "num_epochs": 2} | options
        return ids_of(loader_of(folder, InMemBatchedDataLoader, chosen, batch_size=16))

    shuffled = epochs(shuffle=True, seed=3)
    assert [len(batch) for batch in shuffled] == [25, 25, 10] * 2
    first, second = flat(shuffled[:3]), flat(shuffled[3:])
    assert sorted(first) == sorted(second) == sorted(flat(epochs(num_epochs=1)))
    assert first != second
    assert shuffled == epochs(shuffle=True, seed=3) != epochs(shuffle=True, seed=4)


def test_the_loader_in_memory_ends_an_endless_reader(folder):
    loader = loader_of(folder, InMemBatchedDataLoader, {"rows_capacity": 10}, num_epochs=None)
    assert len(ids_of(loader)) == 10
    with pytest.raises(RuntimeError, match="once"):
        next(iter(loader))


@pytest.fixture
def first_of_two():
    """A process group in which this process is rank 0 of 2, and what it says stands where rank 1 would look."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def test_a_loader_that_begins_elsewhere_than_its_fellow_is_told_before_its_first_batch(folder, first_of_two):
    """Both loaders say what rank they are in the group's store; the second one stands for another process's first."""
    fellow = loader_of(folder, loader_options={"batch_size": 8}, cur_shard=0, shard_count=2)
    next(iter(fellow))
    same = loader_of(folder, loader_options={"batch_size": 8}, cur_shard=0, shard_count=2)
    ranks._loaders.clear()
    next(iter(same))
    ranks._loaders.clear()
    other = loader_of(folder, loader_options={"batch_size": 8}, cur_shard=0, shard_count=2, seed=6)
    with pytest.raises(CursorError, match="ranks do not begin at the same place"):
        next(iter(other))
    for each in (fellow, same, other):
        each.reader.stop()
