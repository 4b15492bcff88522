"""The advice of messages about arguments, applied: what was refused, or warned about, succeeds then.

Each case is a generator. Its first function is refused with the advice; the others follow the advice, and succeed.
"""

import contextlib
import io
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import smalti
from smalti import (
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    World,
    open_dataset,
    open_store,
)
from smalti.cli import main
from smalti.compat import petastorm, streaming
from smalti.compat.petastorm.pytorch import BatchedDataLoader, DataLoader
from smalti.torch.train import RunConfig, TrainConfig, launch
from smalti.torch.tuning.space import parse_space
from smalti.writer import PurgeOptions
from smalti.writer.tables.transform import Transform
from tests.shard_sets import COLUMNS, sample, write_set

CASES = []


def case(area, advice):
    def add(steps):
        CASES.append(pytest.param(advice, steps, id=f"{area}-{steps.__name__}"))
        return steps

    return add


@pytest.mark.parametrize(("advice", "steps"), CASES)
def test_advice_that_is_followed_helps(tmp_path, monkeypatch, advice, steps):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    refused, *followed = steps(tmp_path)
    with pytest.raises((Exception, Warning)) as caught:
        refused()
    assert advice in str(caught.value)
    assert followed
    for step in followed:
        step()


def command(*words):
    """Run `smalti` with these words; raise what it prints if it fails."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        status = main([str(word) for word in words])
    # The message of an error is broken into lines where the terminal ends.
    assert status == 0, " ".join(said.getvalue().split())


def put(folder, count=20, **options):
    """Write a set with splits in folders or without; return its address."""
    return str(write_set(folder, count, **options))


def split_set(at):
    table = pa.table({"id": [1, 2, 3], "part": ["train", "train", "test"]})
    pq.write_table(table, at / "rows.parquet")
    smalti.convert(str(at / "rows.parquet"), str(at / "set"), partition_by="part", processes=1)
    return str(at / "set")


def plain_set(at):
    """Write a set that has no versions."""
    put(at / "set")
    shutil.rmtree(at / "set" / "_versions")
    path = at / "set" / "index.json"
    path.write_text(json.dumps({name: json.loads(path.read_text())[name] for name in ("version", "shards")}))
    return str(at / "set")


def unsafe_set(at):
    with MDSWriter(out=str(at / "set"), columns={"id": "pkl"}, allow_unsafe_types=True) as writer:
        writer.write({"id": 1})
    return str(at / "set")


def read(dataset):
    """Return the samples that a dataset or loader gives."""
    with contextlib.closing(dataset) if hasattr(dataset, "close") else contextlib.nullcontext():
        return list(dataset)


def rows(at, table=None):
    pq.write_table(table or pa.table({"id": [1, 2, None]}), at / "rows.parquet")
    return str(at / "rows.parquet")


def convert(source, to, **options):
    return smalti.convert(source, to, processes=1, **options)


# ------------------------------------------------------------------ storage and opening


@case("storage", "open it without `version`")
def a_plain_set_has_no_version(at):
    place = plain_set(at)
    yield lambda: open_dataset(place, version=1)
    yield lambda: open_dataset(place)


@case("storage", "give one of them")
def a_version_and_a_tag(at):
    place = put(at / "set")
    smalti.tag(place, "best")
    yield lambda: open_dataset(place, version=1, tag="best")
    yield lambda: open_dataset(place, version=1)
    yield lambda: open_dataset(place, tag="best")


@case("storage", "leave `split` out to read all samples")
def a_set_without_splits(at):
    place = put(at / "set")
    yield lambda: open_dataset(place, split="train")
    yield lambda: open_dataset(place)


@case("storage", "Give split='")
def a_set_with_splits(at):
    place = split_set(at)
    yield lambda: open_dataset(place)
    yield lambda: open_dataset(place, split="test")
    yield lambda: open_dataset(place, split="train")
    yield lambda: StreamingDataset(
        streams=[Stream(remote=place, split="train"), Stream(remote=place, split="test")], batch_size=1
    )


@case("storage", "use `StreamingDataset` to read from a store")
def a_local_dataset_of_a_store(at):
    put("memory://advice/set")
    yield lambda: LocalDataset("memory://advice/set")
    yield lambda: read(StreamingDataset(remote="memory://advice/set", batch_size=1))


@case("storage", "or open an older one, such as version=1")
def a_version_that_is_gone(at):
    place = put(at / "set")
    put(at / "set", mode="append")
    (at / "set" / "_versions" / "00000002.json").unlink()
    yield lambda: open_dataset(place)
    yield lambda: open_dataset(place, version=1)


def unsafe_remedies(at, place):
    yield lambda: read(StreamingDataset(local=place, batch_size=1, allow_unsafe_types=True))
    yield lambda: list(LocalDataset(place, allow_unsafe_types=True))
    yield lambda: MDSWriter(out=str(at / "new"), columns={"id": "pkl"}, allow_unsafe_types=True).finish()


UNSAFE = "give `allow_unsafe_types=True` to MDSWriter, StreamingDataset or LocalDataset"


@case("storage", UNSAFE)
def a_pickled_column(at):
    place = unsafe_set(at)
    yield lambda: read(StreamingDataset(local=place, batch_size=1))
    yield from unsafe_remedies(at, place)


@case("writer", UNSAFE)
def a_pickled_column_that_is_converted(at):
    place = unsafe_set(at)
    yield lambda: convert(place, str(at / "out"))
    yield from unsafe_remedies(at, place)


@case("storage", "leave `split` out to read all samples")
def a_look_at_a_split_that_is_not_there(at):
    place = put(at / "set")
    yield lambda: smalti.head(place, split="train")
    yield lambda: smalti.head(place)


@case("storage", "name one as the split, or give its address")
def a_look_at_the_folder_above_sets(at):
    put(at / "all" / "train")
    yield lambda: smalti.head(str(at / "all"))
    yield lambda: smalti.head(str(at / "all"), split="train")
    yield lambda: smalti.head(str(at / "all" / "train"))


@case("storage", "did you mean `endpoint_url`")
def a_storage_option_with_another_name(at):
    yield lambda: open_store("s3://b/set", {"endpoint_ur": "http://127.0.0.1:1"})
    yield lambda: open_store("s3://b/set", {"endpoint_url": "http://127.0.0.1:1"})


@case("storage", "expected http://host:port")
def an_endpoint_without_a_scheme(at):
    yield lambda: open_store("s3://b/set", {"endpoint_url": "127.0.0.1:1"})
    yield lambda: open_store("s3://b/set", {"endpoint_url": "http://127.0.0.1:1"})


@case("storage", "expected a whole number from 1 to")
def attempts_below_one(at):
    yield lambda: open_store("s3://b/set", {"request_attempts": 0})
    yield lambda: open_store("s3://b/set", {"request_attempts": 1})


@case("storage", "or pass `key` and `secret`")
def a_role_without_credentials(at):
    options = {"role_arn": "arn:aws:iam::1:role/r", "endpoint_url": "http://127.0.0.1:1"}
    yield lambda: open_store("s3://b/set", options).exists("x")
    yield lambda: open_store("s3://b/set", options | {"key": "k", "secret": "s"})


# ------------------------------------------------------------------ dataset and loader


@case("dataset", "Give it to the dataset, or use StreamingDataLoader(dataset, batch_size=...)")
def a_dataset_without_a_batch_size(at):
    place = put(at / "set")
    yield lambda: next(iter(StreamingDataset(local=place)))
    yield lambda: read(StreamingDataset(local=place, batch_size=4))
    yield lambda: read(StreamingDataLoader(StreamingDataset(local=place), batch_size=4))


@case("dataset", "for the dataset; give one.")
def two_batch_sizes(at):
    place = put(at / "set")
    yield lambda: read(StreamingDataLoader(StreamingDataset(local=place, batch_size=4), batch_size=2))
    yield lambda: read(StreamingDataLoader(StreamingDataset(local=place, batch_size=4)))


@case("dataset", "Leave `include_ids` out")
def a_column_named_as_the_ids(at):
    with MDSWriter(out=str(at / "set"), columns={"_sample_id": "int"}) as writer:
        writer.write({"_sample_id": 1})
    yield lambda: read(StreamingDataset(local=str(at / "set"), batch_size=1, include_ids=True))
    yield lambda: read(StreamingDataset(local=str(at / "set"), batch_size=1))


@case("dataset", "write ['id']")
def columns_as_a_text(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(local=place, batch_size=1, columns="id")
    yield lambda: StreamingDataset(local=place, batch_size=1, columns=["id"])


@case("dataset", "leave it out to read all")
def no_columns(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(local=place, batch_size=1, columns=[])
    yield lambda: StreamingDataset(local=place, batch_size=1)


@case("dataset", "give both, or none")
def a_limit_of_skipped_samples_alone(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(local=place, batch_size=1, max_skipped=3)
    yield lambda: StreamingDataset(local=place, batch_size=1, max_skipped=3, on_error="skip")
    yield lambda: StreamingDataset(local=place, batch_size=1)


@case("dataset", "give `rank` and `num_ranks` together, or `world` alone")
def a_rank_alone(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(local=place, batch_size=1, rank=0)
    yield lambda: StreamingDataset(local=place, batch_size=1, rank=0, num_ranks=1)
    yield lambda: StreamingDataset(local=place, batch_size=1, world=World())


@case("dataset", "give at least that")
def a_cache_that_is_too_small(at):
    put("memory://advice/small")
    yield lambda: read(StreamingDataset(remote="memory://advice/small", local=str(at), batch_size=1, cache_limit=10))
    yield lambda: read(
        StreamingDataset(remote="memory://advice/small", local=str(at), batch_size=1, cache_limit="64kb")
    )


@case("dataset", "`affinity` must be left out with")
def affinity_in_an_order_of_mosaicml(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(local=place, batch_size=1, shuffle_algo="py1e", affinity=0.5)
    yield lambda: StreamingDataset(local=place, batch_size=1, shuffle_algo="py1e")


@case("dataset", "give `shuffle=False`")
def a_state_of_another_order(at):
    place = put(at / "set")
    state = StreamingDataset(local=place, batch_size=1).state_dict(4)

    def resumed(**options):
        dataset = StreamingDataset(local=place, batch_size=1, **options)
        dataset.load_state_dict(state)
        return read(dataset)

    def begun_anew():
        dataset = StreamingDataset(local=place, batch_size=1, shuffle=True)
        dataset.set_epoch(0)
        return read(dataset)

    yield lambda: resumed(shuffle=True)
    yield lambda: resumed(shuffle=False)
    yield begun_anew


@case("dataset", "or a share of the epoch below 1")
def a_share_of_skipped_samples(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(local=place, batch_size=1, on_error="skip", max_skipped=1.5)
    yield lambda: StreamingDataset(local=place, batch_size=1, on_error="skip", max_skipped=0.5)
    yield lambda: StreamingDataset(local=place, batch_size=1, on_error="skip", max_skipped=2)


@case("loader", "the dataset plans the order; give it `shuffle=True`")
def a_loader_that_shuffles(at):
    place = put(at / "set")
    yield lambda: StreamingDataLoader(StreamingDataset(local=place), batch_size=4, shuffle=True)
    yield lambda: StreamingDataLoader(StreamingDataset(local=place, shuffle=True), batch_size=4)


@case("loader", "leave it out, or give worker_kind='process'")
def an_option_of_processes(at):
    dataset = StreamingDataset(local=put(at / "set"))
    yield lambda: StreamingDataLoader(dataset, batch_size=4, num_workers=1, worker_kind="thread", worker_init_fn=print)
    yield lambda: StreamingDataLoader(dataset, batch_size=4, num_workers=1, worker_kind="thread")
    yield lambda: StreamingDataLoader(dataset, batch_size=4, num_workers=1, worker_kind="process", worker_init_fn=print)


@case("loader", "fill nulls in the transform of samples")
def nulls_among_numbers(at):
    def with_none(sample):
        return {"x": None if sample["id"] % 2 else sample["id"]}

    place = put(at / "set")
    yield lambda: read(StreamingDataLoader(StreamingDataset(local=place, transform=with_none), 4))
    yield lambda: read(StreamingDataLoader(StreamingDataset(local=place, transform=lambda s: {"x": s["id"]}), 4))


@case("loader", "must return the same columns for every sample")
def a_column_of_some_samples(at):
    def some(sample):
        return {"x": 1} if sample["id"] % 2 else {"x": 1, "y": 2}

    place = put(at / "set")
    yield lambda: read(StreamingDataLoader(StreamingDataset(local=place, transform=some), 4))
    yield lambda: read(StreamingDataLoader(StreamingDataset(local=place, transform=lambda s: {"x": 1}), 4))


@case("loader", "other datasets go to torch's own DataLoader")
def a_dataset_of_torch(at):
    dataset = [1, 2, 3]
    yield lambda: StreamingDataLoader(dataset, batch_size=1)
    yield lambda: read(torch.utils.data.DataLoader(dataset, batch_size=1))


@case("loader", "`proportion` must be given for all streams or for none")
def a_proportion_of_one_stream(at):
    one, two = put(at / "one"), put(at / "two")
    yield lambda: StreamingDataset(streams=[Stream(local=one, proportion=1), Stream(local=two)], batch_size=1)
    yield lambda: StreamingDataset(
        streams=[Stream(local=one, proportion=1), Stream(local=two, proportion=1)], batch_size=1
    )
    yield lambda: StreamingDataset(streams=[Stream(local=one), Stream(local=two)], batch_size=1)


# ------------------------------------------------------------------ writer, conversion and export


@case("writer", 'use mode="append" to add to it or mode="overwrite"')
def a_set_that_is_there(at):
    put(at / "set")
    yield lambda: put(at / "set")
    yield lambda: put(at / "set", mode="append")
    yield lambda: put(at / "set", mode="overwrite")


@case("writer", "leave `exist_ok` out")
def a_mode_beside_exist_ok(at):
    put(at / "set")
    yield lambda: put(at / "set", mode="append", exist_ok=True)
    yield lambda: put(at / "set", mode="append")


@case("writer", "Append to the remote set alone")
def a_local_copy_of_what_is_appended(at):
    put(at / "set")
    options = {"columns": COLUMNS, "mode": "append"}
    yield lambda: MDSWriter(out=(str(at / "local"), str(at / "set")), keep_local=True, **options)
    yield lambda: MDSWriter(out=str(at / "set"), **options).finish()


@case("writer", "ask for less")
def shards_that_are_too_large(at):
    yield lambda: put(at / "set", size_limit="5gb")
    yield lambda: put(at / "set", size_limit="1gb")


@case("writer", "name each once")
def a_hash_twice(at):
    yield lambda: put(at / "set", hashes=["sha1", "sha1"])
    yield lambda: put(at / "set", hashes=["sha1"])


@case("writer", "Write the column as json or ndarray")
def a_column_to_pickle(at):
    def written(encoding, **options):
        with MDSWriter(out=str(at / encoding), columns={"a": encoding}, **options) as writer:
            writer.write({"a": [1] if encoding != "ndarray" else np.array([1])})

    yield lambda: written("pkl")
    yield lambda: written("json")
    yield lambda: written("ndarray")


@case("writer", "write the columns of the set, or give mode='overwrite'")
def other_columns(at):
    def written(columns, mode):
        with MDSWriter(out=str(at / "set"), columns=columns, mode=mode) as writer:
            writer.write({name: sample(1).get(name, 1) for name in columns})

    put(at / "set")
    yield lambda: written({"id": "int", "size": "int"}, "append")
    yield lambda: written(COLUMNS, "append")
    yield lambda: written({"id": "int", "size": "int"}, "overwrite")


@case("writer", 'nulls={\'id\': "mask"}` or `{"default": ...}')
def a_null(at):
    source = rows(at)
    yield lambda: convert(source, str(at / "one"))
    yield lambda: convert(source, str(at / "two"), nulls={"id": "mask"})
    yield lambda: convert(source, str(at / "three"), nulls={"id": {"default": 0}})


@case("writer", "must hold text, found int64: cast it first")
def a_split_of_numbers(at):
    source = rows(at, pa.table({"id": [1, 2], "part": [0, 1]}))

    def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": batch["id"], "part": batch["part"].cast(pa.string())})

    yield lambda: convert(source, str(at / "one"), partition_by="part")
    yield lambda: convert(source, str(at / "two"), partition_by="part", transform=cast)


@case("writer", "Say the form in words: Transform(function, 'pandas')")
def a_transform_annotated_by_another_type(at):
    source = rows(at, pa.table({"id": [1, 2]}))

    def unchanged(batch: dict) -> dict:
        return batch

    yield lambda: convert(source, str(at / "one"), transform=unchanged)
    yield lambda: convert(source, str(at / "two"), transform=Transform(unchanged, "pandas"))


@case("writer", "did you mean 'str'?")
def an_encoding_that_is_unknown(at):
    yield lambda: MDSWriter(out=str(at / "set"), columns={"a": "text"})
    yield lambda: MDSWriter(out=str(at / "set"), columns={"a": "str"})


@case("writer", "tar files of WebDataset are not compressed")
def compressed_tar_files(at):
    place = put(at / "set")
    yield lambda: smalti.export(place, str(at / "out"), format="webdataset", columns=["id"], compression="zstd")
    yield lambda: smalti.export(place, str(at / "tar"), format="webdataset", columns=["id"])
    yield lambda: smalti.export(place, str(at / "parquet"), format="parquet", columns=["id"], compression="zstd")


@case("writer", "a Parquet file has the columns' own names")
def endings_in_a_parquet_file(at):
    place = put(at / "set")
    names = {"id": "cls"}
    yield lambda: smalti.export(place, str(at / "out"), format="parquet", columns=["id"], names=names)
    yield lambda: smalti.export(place, str(at / "parquet"), format="parquet", columns=["id"])
    yield lambda: smalti.export(place, str(at / "tar"), format="webdataset", columns=["id"], names=names)


@case("writer", "name one: format=")
def a_folder_of_two_formats(at):
    (at / "mixed").mkdir()
    pq.write_table(pa.table({"id": [1]}), at / "mixed" / "a.parquet")
    (at / "mixed" / "b.jsonl").write_text('{"id": 2}\n')
    yield lambda: convert(str(at / "mixed"), str(at / "one"))
    yield lambda: convert(str(at / "mixed" / "*.parquet"), str(at / "two"))
    yield lambda: convert(str(at / "mixed"), str(at / "three"), format="jsonl")


# ------------------------------------------------------------------ versions


@case("versions", "say `move` to give it to version 2")
def a_tag_of_another_version(at):
    place = put(at / "set")
    put(at / "set", mode="append")
    smalti.tag(place, "best", 1)
    yield lambda: smalti.tag(place, "best", 2)
    yield lambda: smalti.tag(place, "best", 2, move=True)


@case("versions", "Say `unsafe_ttl` if no")
def a_short_vacuum(at):
    place = put(at / "set")
    yield lambda: smalti.vacuum(place, older_than="1h")
    yield lambda: smalti.vacuum(place, older_than="1h", unsafe_ttl=True)


@case("versions", "Take them out with `drop_columns`, append, and add them again")
def an_append_beside_added_columns(at):
    place = put(at / "set", 10)

    def half(batch):
        return {"half": np.asarray(batch["id"]) / 2}

    def add():
        smalti.add_columns(place, {"half": "float64"}, half)

    add()
    yield lambda: put(at / "set", mode="append")
    yield lambda: smalti.drop_columns(place, ["half"])
    yield lambda: put(at / "set", mode="append")
    yield add


@case("versions", "give the common root as `out`")
def shards_beside_the_root(at):
    put(at / "all" / "a")
    put(at / "all" / "b")
    (at / "empty").mkdir()
    files = [str(at / "all" / name / "index.json") for name in "ab"]
    yield lambda: smalti.merge_index(index_file_urls=files, out=str(at / "empty"))
    yield lambda: smalti.merge_index(index_file_urls=files, out=str(at / "all"))


@case("versions", "give either `where` or `ids`")
def a_deletion_of_nothing(at):
    place = put(at / "set")
    yield lambda: smalti.delete(place)
    yield lambda: smalti.delete(place, [("id", "==", 3)])
    yield lambda: smalti.delete(place, ids=[4], column="id")


@case("versions", "expected a list of comparisons such as")
def a_condition_as_text(at):
    place = put(at / "set")
    yield lambda: smalti.delete(place, "id == 3")
    yield lambda: smalti.delete(place, [("id", "==", 3)])


@case("versions", "Say `allow_empty` for a version without samples")
def a_deletion_of_everything(at):
    place = put(at / "set")
    yield lambda: smalti.delete(place, [("id", ">=", 0)])
    yield lambda: smalti.delete(place, [("id", ">=", 0)], allow_empty=True)


@case("versions", "convert it to a versioned set at another place (`smalti convert`), delete there")
def a_deletion_in_a_plain_set(at):
    place = plain_set(at)
    yield lambda: smalti.delete(place, [("id", "==", 3)])
    yield lambda: command("convert", place, at / "new")
    yield lambda: smalti.delete(str(at / "new"), [("id", "==", 3)])


@case("versions", "`column` belongs to `ids`")
def a_column_beside_comparisons(at):
    place = put(at / "set")
    yield lambda: smalti.delete(place, [("id", "==", 3)], column="id")
    yield lambda: smalti.delete(place, [("id", "==", 3)])


@case("versions", "say `restore_erased` of `copy_version`")
def a_copy_of_deleted_samples(at):
    source, target = put(at / "set"), str(at / "copy")
    smalti.copy_version(source, target)
    smalti.delete(target, [("id", "==", 3)])
    put(at / "set", mode="append")
    yield lambda: smalti.copy_version(source, target, mode="overwrite")
    yield lambda: smalti.copy_version(source, target, mode="overwrite", restore_erased=True)


@case("versions", "publish a copy after it with `copy_version` and mode='overwrite'")
def a_mirror_with_versions_of_its_own(at):
    source, target = put(at / "set"), put(at / "other")
    yield lambda: smalti.sync(source, target)
    yield lambda: smalti.sync(source, str(at / "mirror"))
    yield lambda: smalti.copy_version(source, target, mode="overwrite")


@case("versions", 'samples); use mode="overwrite" to replace it by a new version')
def a_copy_to_another_set(at):
    place, other = put(at / "set"), put(at / "other", 5)
    yield lambda: smalti.copy_version(place, other)
    yield lambda: smalti.copy_version(place, other, mode="overwrite")


@case("versions", "expected refuse, remove or move")
def a_purge_with_another_word(at):
    yield lambda: PurgeOptions(tags="keep")
    yield lambda: PurgeOptions(tags="remove")


# ------------------------------------------------------------------ training


@case("train", "choose 'processes'")
def several_processes_inline(at):
    yield lambda: RunConfig(run_dir="run", num_processes=2)
    yield lambda: RunConfig(run_dir="run", num_processes=2, launcher="processes")


@case("train", "0 with launcher='inline'")
def restarts_inline(at):
    yield lambda: RunConfig(run_dir="run", max_restarts=2)
    yield lambda: RunConfig(run_dir="run", max_restarts=2, launcher="processes")
    yield lambda: RunConfig(run_dir="run", max_restarts=0)


@case("train", "`min` or `max`, a space and the name of a figure")
def the_best_figure_alone(at):
    yield lambda: RunConfig(run_dir="run", keep_best="accuracy")
    yield lambda: RunConfig(run_dir="run", keep_best="max accuracy")


@case("train", "from 1 to `num_processes`, or None")
def more_processes_than_there_are(at):
    yield lambda: RunConfig(run_dir="run", min_processes=2)
    yield lambda: RunConfig(run_dir="run", min_processes=1)
    yield lambda: RunConfig(run_dir="run")


@case("train", "choose one of these or another `batch_size`")
def a_batch_that_cannot_be_divided(at):
    def config(size):
        return TrainConfig(data="set", run_dir="run", batch_size=size)

    yield lambda: config(32).batch_per_rank(3)
    yield lambda: config(32).batch_per_rank(4)
    yield lambda: config(33).batch_per_rank(3)


@case("train", "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
def a_password_in_an_address(at):
    yield lambda: RunConfig(run_dir="run", mlflow="https://user:secret@host")
    yield lambda: RunConfig(run_dir="run", mlflow="https://host")


@case("train", "give `launch` or `dataloader` the address of a shard set")
def a_function_without_data(at):
    place = put(at / "set")

    def function(context, **data):
        return len(list(context.dataloader(None, **data)))

    options = {"batch_size": 4}
    yield lambda: launch(lambda context: function(context, **options), run_dir=str(at / "a"))
    yield lambda: launch(lambda context: function(context, **options), run_dir=str(at / "b"), data=place)
    yield lambda: launch(lambda context: function(context, data=place, **options), run_dir=str(at / "c"))


@case("train", "Count the steps on from `context.latest().step`")
def a_checkpoint_of_an_earlier_step(at):
    def run(step):
        def function(context):
            found = context.latest()
            context.save(step if found is None or step else found.step + 1, {"x": 1})

        launch(function, run_dir=str(at / "run"))

    run(5)
    yield lambda: run(3)
    yield lambda: run(0)


@case("train", "Make it by `context.dataloader`, or pass `ledger=context.ledger` to it; or leave `log_samples` out")
def a_loader_that_records_nothing(at):
    place = put(at / "set")

    def own(context, **options):
        dataset = StreamingDataset(local=place, batch_size=4, shuffle=True)
        return len(list(StreamingDataLoader(dataset, **options(context) if options else {})))

    def recorded(context):
        dataset = StreamingDataset(local=place, batch_size=4, shuffle=True)
        return len(list(StreamingDataLoader(dataset, ledger=context.ledger)))

    def given(context):
        return len(list(context.dataloader(None, data=place, batch_size=4)))

    yield lambda: launch(own, run_dir=str(at / "a"), log_samples=True)
    yield lambda: launch(given, run_dir=str(at / "b"), log_samples=True)
    yield lambda: launch(recorded, run_dir=str(at / "c"), log_samples=True)
    yield lambda: launch(own, run_dir=str(at / "d"))


@case("train", "such as an object's `state_dict()`")
def an_object_in_a_checkpoint(at):
    model = torch.nn.Linear(1, 1)
    yield lambda: launch(lambda context: context.save(1, {"model": model}), run_dir=str(at / "a"))
    yield lambda: launch(lambda context: context.save(1, {"model": model.state_dict()}), run_dir=str(at / "b"))


@case("train", "a range with `low`, `high`, and perhaps `log` or `step`")
def a_range_as_a_text(at):
    yield lambda: parse_space({"learning_rate": "0.1-1"})
    yield lambda: parse_space({"learning_rate": {"low": 0.1, "high": 1, "log": True}})
    yield lambda: parse_space({"learning_rate": [0.1, 1]})


@case("train", "give all but one `resume=False`")
def two_loaders_of_one_place(at):
    place = put(at / "set")

    def run(name, **second):
        def function(context):
            loaders = [context.dataloader(None, batch_size=4), context.dataloader(None, batch_size=4, **second)]
            return [len(list(loader)) for loader in loaders]

        launch(function, data=place, run_dir=str(at / name))

    yield lambda: run("a")
    yield lambda: run("b", resume=False)


# ------------------------------------------------------------------ command line


@case("cli", "give either --where or --ids")
def a_command_that_deletes_nothing(at):
    place = put(at / "set")
    yield lambda: command("delete", place)
    yield lambda: command("delete", place, "--where", "id=3", "--dry-run")


@case("cli", "look with --dry-run first, then give --yes")
def nobody_to_ask(at):
    place = put(at / "set")
    yield lambda: command("delete", place, "--where", "id=3")
    yield lambda: command("delete", place, "--where", "id=3", "--dry-run")
    yield lambda: command("delete", place, "--where", "id=3", "--yes")


@case("cli", "need --purge")
def an_option_of_a_purge(at):
    place = put(at / "set")
    yield lambda: command("delete", place, "--where", "id=3", "--yes", "--tags", "remove")
    yield lambda: command("delete", place, "--where", "id=3", "--yes", "--tags", "remove", "--purge")


@case("cli", "--at and --tag exclude each other")
def a_version_and_a_tag_in_the_shell(at):
    place = put(at / "set")
    smalti.tag(place, "best")
    yield lambda: command("info", place, "--at", 1, "--tag", "best")
    yield lambda: command("info", place, "--at", 1)
    yield lambda: command("info", place, "--tag", "best")


@case("cli", "use --mode append to add to it or --mode overwrite")
def a_set_that_is_there_in_the_shell(at):
    place, source = put(at / "set"), rows(at, pa.table({"id": [1]}))
    yield lambda: command("convert", source, place)
    yield lambda: command("convert", source, place, "--mode", "overwrite")
    yield lambda: command("convert", source, place, "--mode", "append")


@case("cli", "samples); use --overwrite to replace it by a new version")
def a_copy_to_a_set_that_is_there(at):
    place, other = put(at / "set"), put(at / "other", 5)
    yield lambda: command("cp", place, other)
    yield lambda: command("cp", place, other, "--overwrite")


@case("cli", "(`smalti cp --overwrite`)")
def a_mirror_with_versions_of_its_own_in_the_shell(at):
    place, other = put(at / "set"), put(at / "other", 5)
    yield lambda: command("sync", place, other)
    yield lambda: command("cp", place, other, "--overwrite")


@case("cli", "Say `--unsafe-ttl` if no")
def a_short_vacuum_in_the_shell(at):
    place = put(at / "set")
    yield lambda: command("vacuum", place, "--older-than", "1h")
    yield lambda: command("vacuum", place, "--older-than", "1h", "--unsafe-ttl")


@case("cli", "expected COLUMN=ENDING, such as image=jpg")
def a_name_without_an_ending(at):
    place = put(at / "set")
    words = ("export", place, at / "out", "--format", "webdataset", "--column", "id")
    yield lambda: command(*words, "--name", "id")
    yield lambda: command(*words, "--name", "id=cls")


@case("cli", "expected hosts x ranks of each, such as 2x8")
def a_world_of_one_number(at):
    place = put(at / "set")
    yield lambda: command("plan", place, "--batch", 1, "--world", 2)
    yield lambda: command("plan", place, "--batch", 1, "--world", "2x2")


@case("cli", "expected bytes, such as 50GB")
def a_cache_in_words(at):
    place = put(at / "set")
    yield lambda: command("plan", place, "--batch", 1, "--cache", "large")
    yield lambda: command("plan", place, "--batch", 1, "--cache", "50GB")


@case("cli", "`smalti convert` makes a version of them")
def a_folder_of_parquet(at):
    (at / "rows").mkdir()
    pq.write_table(pa.table({"id": [1]}), at / "rows" / "a.parquet")
    yield lambda: command("head", at / "rows")
    yield lambda: command("convert", at / "rows", at / "set")
    yield lambda: command("head", at / "set")


@case("cli", "nulls: not valid JSON")
def nulls_that_are_not_json(at):
    source = rows(at)
    yield lambda: command("convert", source, at / "one", "--nulls", "{id: mask}")
    yield lambda: command("convert", source, at / "two", "--nulls", '{"id": "mask"}')


@case("cli", "expected key=value, such as epochs=3")
def a_setting_without_a_value(at):
    (at / "c.yaml").write_text(f"data: {put(at / 'set')}\nrun_dir: {at / 'run'}\n")
    yield lambda: command("train", at / "c.yaml", "--dry-run", "--set", "epochs")
    yield lambda: command("train", at / "c.yaml", "--dry-run", "--set", "epochs=3")


# ------------------------------------------------------------------ interfaces of other libraries


def parquet(at):
    (at / "rows").mkdir()
    pq.write_table(pa.table({"id": list(range(20)), "my col": ["x"] * 20}), at / "rows" / "a.parquet")
    return f"file://{at / 'rows'}"


def batches(url, **options):
    with petastorm.make_batch_reader(url, **options) as reader:
        return list(reader.batches())


@case("compat", "give shuffle_row_groups=True, which shuffles both, or False for both")
def rows_are_shuffled_alone(at):
    url = parquet(at)
    yield lambda: batches(url, shuffle_rows=True, shuffle_row_groups=False)
    yield lambda: batches(url, shuffle_rows=True, shuffle_row_groups=True)
    yield lambda: batches(url, shuffle_rows=False, shuffle_row_groups=False)


@case("compat", "Use `filters`, which are exact and need no index")
def a_selector_of_row_groups(at):
    url = parquet(at)
    yield lambda: batches(url, rowgroup_selector=object())
    yield lambda: batches(url, filters=[("id", "<", 3)])


@case("compat", "needs `cache_location`, a folder, and `cache_size_limit`, bytes")
def a_disk_cache_of_no_size(at):
    url = parquet(at)
    yield lambda: batches(url, cache_type="local-disk")
    yield lambda: batches(url, cache_type="local-disk", cache_location=str(at / "cache"), cache_size_limit=1 << 30)


@case("compat", "must be given together")
def a_shard_without_their_number(at):
    url = parquet(at)
    yield lambda: batches(url, cur_shard=0)
    yield lambda: batches(url, cur_shard=0, shard_count=2)


@case("compat", "use `reader.batches()` or a DataLoader, which return dicts")
def a_column_that_is_no_identifier(at):
    url = parquet(at)

    def named(**options):
        with petastorm.make_batch_reader(url, **options) as reader:
            return next(iter(reader))

    yield named
    yield lambda: named(schema_fields=["id"])
    yield lambda: batches(url)
    yield lambda: read(DataLoader(petastorm.make_batch_reader(url), batch_size=4))


@case("compat", "this loader supports only numbers: use DataLoader")
def texts_in_batches_of_tensors(at):
    url = parquet(at)
    yield lambda: read(BatchedDataLoader(petastorm.make_batch_reader(url), batch_size=4))
    yield lambda: read(DataLoader(petastorm.make_batch_reader(url), batch_size=4))


@case("compat", "give one of `removed_fields` and `selected_fields`, not both")
def fields_that_are_removed_and_selected(at):
    url = parquet(at)
    spec = petastorm.TransformSpec
    yield lambda: batches(url, transform_spec=spec(removed_fields=["my col"], selected_fields=["id"]))
    yield lambda: batches(url, transform_spec=spec(removed_fields=["my col"]))
    yield lambda: batches(url, transform_spec=spec(selected_fields=["id"]))


@case("compat", "list new columns in `edit_fields`")
def a_column_that_is_not_declared(at):
    url = parquet(at)

    def doubled(frame):
        return frame.assign(double=frame["id"] * 2)

    spec = petastorm.TransformSpec
    yield lambda: batches(url, transform_spec=spec(doubled))
    yield lambda: batches(url, transform_spec=spec(doubled, edit_fields=[("double", np.int64, (), False)]))


@case("compat", "You must provide either `streams` or `remote`/`local`, but not both.")
def streams_beside_a_folder(at):
    place = put(at / "set")
    streams = [streaming.Stream(local=place)]
    yield lambda: streaming.StreamingDataset(streams=streams, local=place, batch_size=1)
    yield lambda: streaming.StreamingDataset(streams=streams, batch_size=1)


@case("compat", "Give all streams a `proportion`, or none.")
def a_proportion_beside_a_repetition(at):
    one, two = put(at / "one"), put(at / "two")

    def mixed(**second):
        streams = [streaming.Stream(local=one, proportion=1), streaming.Stream(local=two, **second)]
        return streaming.StreamingDataset(streams=streams, batch_size=1)

    yield lambda: mixed(repeat=2)
    yield lambda: mixed(proportion=1)


@case("compat", "or pass exist_ok=True")
def a_folder_that_is_not_empty(at):
    def written(**options):
        with streaming.MDSWriter(out=str(at / "set"), columns={"a": "int"}, **options) as writer:
            writer.write({"a": 1})

    written()
    yield written
    yield lambda: written(exist_ok=True)


@case("compat", "To proceed anyway, set ``allow_unsafe_types=True``")
def a_pickled_column_as_mosaicml_reads_it(at):
    place = unsafe_set(at)
    yield lambda: list(streaming.StreamingDataset(local=place, batch_size=1))
    yield lambda: list(streaming.StreamingDataset(local=place, batch_size=1, allow_unsafe_types=True))
