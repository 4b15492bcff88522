"""The advice of messages about training, the command line, and the interfaces of other libraries, applied."""

import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import smalti
from smalti import (
    MDSWriter,
    StreamingDataLoader,
    StreamingDataset,
)
from smalti.compat import petastorm, streaming
from smalti.compat.petastorm.pytorch import BatchedDataLoader, DataLoader
from smalti.torch.train import RunConfig, TrainConfig, launch
from smalti.torch.tuning.space import parse_space
from tests.rules.followed_advice import Cases, check_followed, command, put, read, rows, unsafe_set

CASES = Cases()
case = CASES.add


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
        dataset = StreamingDataset(remote=place, batch_size=4, shuffle=True)
        return len(list(StreamingDataLoader(dataset, **options(context) if options else {})))

    def recorded(context):
        dataset = StreamingDataset(remote=place, batch_size=4, shuffle=True)
        return len(list(StreamingDataLoader(dataset, ledger=context.ledger)))

    def given(context):
        return len(list(context.dataloader(None, data=place, batch_size=4)))

    yield lambda: launch(own, run_dir=str(at / "a"), log_samples=True)
    yield lambda: launch(given, run_dir=str(at / "b"), log_samples=True)
    yield lambda: launch(recorded, run_dir=str(at / "c"), log_samples=True)
    yield lambda: launch(own, run_dir=str(at / "d"))


@case("train", "as `local` (of a training: `cache_dir`)")
def a_cache_folder_below_a_file(at):
    put("memory://advice/train")
    (at / "file").write_text("x")

    def run(name, cache):
        def function(context):
            return len(list(context.dataloader(None, batch_size=4)))

        launch(function, data="memory://advice/train", run_dir=str(at / name), cache_dir=str(at / cache))

    yield lambda: run("a", "file/cache")
    yield lambda: run("b", "cache")


@case("train", "leave `split` out (of a training: train_split=None and eval_split=None)")
def a_training_on_a_set_without_splits(at):
    place = put(at / "set")

    yield lambda: launch(lambda context: context.dataloader("train", batch_size=4), data=place, run_dir=str(at / "a"))
    yield lambda: launch(lambda context: len(context.dataloader(batch_size=4)), data=place, run_dir=str(at / "b"))


@case("train", "Correct the names")
def a_setting_that_launch_does_not_have(at):
    yield lambda: launch(lambda context: 1, run_dir=str(at / "a"), processes=1)
    yield lambda: launch(lambda context: 1, run_dir=str(at / "b"), num_processes=1)


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


@case("cli", "Give --setting 'delimiter=;'; if it is one column, --setting delimiter=,")
def a_delimiter_in_the_shell(at):
    (at / "a.csv").write_text("a;b\n1;2\n")
    yield lambda: command("convert", at / "a.csv", at / "out")
    yield lambda: command("convert", at / "a.csv", at / "two", "--setting", "delimiter=;")
    yield lambda: command("convert", at / "a.csv", at / "one", "--setting", "delimiter=,")


@case("cli", """--setting 'types={"a": "float64"}' rounds""")
def a_type_in_the_shell(at):
    (at / "a.jsonl").write_text('{"a": 1234567890123456789012}\n')
    yield lambda: command("convert", at / "a.jsonl", at / "one")
    yield lambda: command("convert", at / "a.jsonl", at / "two", "--setting", 'types={"a": "float64"}')


@case("cli", """give --setting 'missing="null"'""")
def an_incomplete_sample_in_the_shell(at):
    with tarfile.open(at / "a.tar", "w") as tar:
        for name in ("1.txt", "1.cls", "2.txt"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
    yield lambda: command("convert", at / "a.tar", at / "one")
    yield lambda: command(
        "convert", at / "a.tar", at / "two", "--setting", 'missing="null"', "--nulls", '{"cls": "mask"}'
    )


@case("cli", """what to do with `--nulls '{"id": "mask"}'`""")
def a_null_in_the_shell(at):
    source = rows(at)
    yield lambda: command("convert", source, at / "one")
    yield lambda: command("convert", source, at / "two", "--nulls", '{"id": "mask"}')


@case("cli", "leave it out with `--column`")
def a_pickled_column_that_is_exported(at):
    with MDSWriter(out=str(at / "set"), columns={"id": "pkl", "n": "int"}, allow_unsafe_types=True) as writer:
        writer.write({"id": 1, "n": 1})
    words = ("export", at / "set", at / "out", "--format", "parquet")
    yield lambda: command(*words)
    yield lambda: command(*words, "--column", "n")


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


@pytest.mark.parametrize(("advice", "steps"), CASES)
def test_advice_that_is_followed_helps(tmp_path, monkeypatch, advice, steps):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    check_followed(tmp_path, advice, steps)
