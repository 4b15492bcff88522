"""The advice of messages about reading: places, datasets and loaders, applied."""

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
from smalti.cache import CacheOptions
from tests.rules.followed_advice import Cases, check_followed, convert, plain_set, put, read, split_set, unsafe_set

CASES = Cases()
case = CASES.add


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


@case("storage", "train_split=None and eval_split=None) to read all samples")
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
    yield lambda: smalti.info(place, version=1)
    yield lambda: smalti.head(place, version=1)


def unsafe_remedies(at, place):
    yield lambda: read(StreamingDataset(remote=place, batch_size=1, allow_unsafe_types=True))
    yield lambda: list(LocalDataset(place, allow_unsafe_types=True))
    yield lambda: MDSWriter(out=str(at / "new"), columns={"id": "pkl"}, allow_unsafe_types=True).finish()


UNSAFE = "give `allow_unsafe_types=True` to MDSWriter, StreamingDataset or LocalDataset"


@case("storage", UNSAFE)
def a_pickled_column(at):
    place = unsafe_set(at)
    yield lambda: read(StreamingDataset(remote=place, batch_size=1))
    yield from unsafe_remedies(at, place)


@case("writer", UNSAFE)
def a_pickled_column_that_is_converted(at):
    place = unsafe_set(at)
    yield lambda: convert(place, str(at / "out"))
    yield from unsafe_remedies(at, place)


@case("storage", "train_split=None and eval_split=None) to read all samples")
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
    yield lambda: next(iter(StreamingDataset(remote=place)))
    yield lambda: read(StreamingDataset(remote=place, batch_size=4))
    yield lambda: read(StreamingDataLoader(StreamingDataset(remote=place), batch_size=4))


@case("dataset", "for the dataset; give one.")
def two_batch_sizes(at):
    place = put(at / "set")
    yield lambda: read(StreamingDataLoader(StreamingDataset(remote=place, batch_size=4), batch_size=2))
    yield lambda: read(StreamingDataLoader(StreamingDataset(remote=place, batch_size=4)))


@case("dataset", "Leave `include_ids` out")
def a_column_named_as_the_ids(at):
    with MDSWriter(out=str(at / "set"), columns={"_sample_id": "int"}) as writer:
        writer.write({"_sample_id": 1})
    yield lambda: read(StreamingDataset(remote=str(at / "set"), batch_size=1, include_ids=True))
    yield lambda: read(StreamingDataset(remote=str(at / "set"), batch_size=1))


@case("dataset", "write ['id']")
def columns_as_a_text(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(remote=place, batch_size=1, columns="id")
    yield lambda: StreamingDataset(remote=place, batch_size=1, columns=["id"])


@case("dataset", "leave it out to read all")
def no_columns(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(remote=place, batch_size=1, columns=[])
    yield lambda: StreamingDataset(remote=place, batch_size=1)


@case("dataset", "give both, or none")
def a_limit_of_skipped_samples_alone(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(remote=place, batch_size=1, max_skipped=3)
    yield lambda: StreamingDataset(remote=place, batch_size=1, max_skipped=3, on_error="skip")
    yield lambda: StreamingDataset(remote=place, batch_size=1)


@case("dataset", "is now in cache=CacheOptions(local=...)")
def an_argument_that_moved(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(remote=place, batch_size=1, local=str(at / "cache"))
    yield lambda: StreamingDataset(remote=place, batch_size=1, cache=CacheOptions(local=str(at / "cache")))


@case("dataset", "is now in world=World.flat(rank, num_ranks)")
def a_rank_without_a_world(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(remote=place, batch_size=1, rank=0, num_ranks=1)
    yield lambda: StreamingDataset(remote=place, batch_size=1, world=World.flat(0, 1))


@case("dataset", "give at least that")
def a_cache_that_is_too_small(at):
    put("memory://advice/small")
    yield lambda: read(
        StreamingDataset(
            remote="memory://advice/small", cache=CacheOptions(local=str(at), cache_limit=10), batch_size=1
        )
    )
    yield lambda: read(
        StreamingDataset(
            remote="memory://advice/small", cache=CacheOptions(local=str(at), cache_limit="64kb"), batch_size=1
        )
    )


@case("dataset", "give `shuffle=False`")
def a_state_of_another_order(at):
    place = put(at / "set")
    state = StreamingDataset(remote=place, batch_size=1).state_dict(4)

    def resumed(**options):
        dataset = StreamingDataset(remote=place, batch_size=1, **options)
        dataset.load_state_dict(state)
        return read(dataset)

    def begun_anew():
        dataset = StreamingDataset(remote=place, batch_size=1, shuffle=True)
        dataset.set_epoch(0)
        return read(dataset)

    yield lambda: resumed(shuffle=True)
    yield lambda: resumed(shuffle=False)
    yield begun_anew


@case("dataset", "or a share of the epoch below 1")
def a_share_of_skipped_samples(at):
    place = put(at / "set")
    yield lambda: StreamingDataset(remote=place, batch_size=1, on_error="skip", max_skipped=1.5)
    yield lambda: StreamingDataset(remote=place, batch_size=1, on_error="skip", max_skipped=0.5)
    yield lambda: StreamingDataset(remote=place, batch_size=1, on_error="skip", max_skipped=2)


@case("loader", "the dataset plans the order; give it `shuffle=True`")
def a_loader_that_shuffles(at):
    place = put(at / "set")
    yield lambda: StreamingDataLoader(StreamingDataset(remote=place), batch_size=4, shuffle=True)
    yield lambda: StreamingDataLoader(StreamingDataset(remote=place, shuffle=True), batch_size=4)


@case("loader", "leave it out, or give worker_kind='process'")
def an_option_of_processes(at):
    dataset = StreamingDataset(remote=put(at / "set"))
    yield lambda: StreamingDataLoader(dataset, batch_size=4, num_workers=1, worker_kind="thread", worker_init_fn=print)
    yield lambda: StreamingDataLoader(dataset, batch_size=4, num_workers=1, worker_kind="thread")
    yield lambda: StreamingDataLoader(dataset, batch_size=4, num_workers=1, worker_kind="process", worker_init_fn=print)


@case("loader", "fill nulls in the transform of samples")
def nulls_among_numbers(at):
    def with_none(sample):
        return {"x": None if sample["id"] % 2 else sample["id"]}

    place = put(at / "set")
    yield lambda: read(StreamingDataLoader(StreamingDataset(remote=place, transform=with_none), 4))
    yield lambda: read(StreamingDataLoader(StreamingDataset(remote=place, transform=lambda s: {"x": s["id"]}), 4))


@case("loader", "must return the same columns for every sample")
def a_column_of_some_samples(at):
    def some(sample):
        return {"x": 1} if sample["id"] % 2 else {"x": 1, "y": 2}

    place = put(at / "set")
    yield lambda: read(StreamingDataLoader(StreamingDataset(remote=place, transform=some), 4))
    yield lambda: read(StreamingDataLoader(StreamingDataset(remote=place, transform=lambda s: {"x": 1}), 4))


@case("loader", "other datasets go to torch's own DataLoader")
def a_dataset_of_torch(at):
    dataset = [1, 2, 3]
    yield lambda: StreamingDataLoader(dataset, batch_size=1)
    yield lambda: read(torch.utils.data.DataLoader(dataset, batch_size=1))


@case("loader", "`proportion` must be given for all streams or for none")
def a_proportion_of_one_stream(at):
    one, two = put(at / "one"), put(at / "two")
    yield lambda: StreamingDataset(streams=[Stream(remote=one, proportion=1), Stream(remote=two)], batch_size=1)
    yield lambda: StreamingDataset(
        streams=[Stream(remote=one, proportion=1), Stream(remote=two, proportion=1)], batch_size=1
    )
    yield lambda: StreamingDataset(streams=[Stream(remote=one), Stream(remote=two)], batch_size=1)


@pytest.mark.parametrize(("advice", "steps"), CASES)
def test_advice_that_is_followed_helps(tmp_path, monkeypatch, advice, steps):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    check_followed(tmp_path, advice, steps)
