"""Mixtures of shard sets in the trainer and in functions: their batches, versions, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from smalti.catalog import Draft, new_write_id, publish, tag
from smalti.errors import CursorError, SchemaError, TrainingError
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.storage import open_store
from smalti.stream import Stream
from smalti.torch.train import launch, read_sample_order, train
from smalti.torch.train.config import RunConfig
from smalti.torch.train.data import PinnedData
from smalti.torch.train.tasks.images import ImageClassification
from smalti.writer import ShardUploader
from tests.torch.train.conftest import publish_squares, square

pytestmark = pytest.mark.torch

PER_CLASS = {"red": 12, "green": 6, "blue": 3}
"""Ids 0 to 11, 12 to 17 and 18 to 20 of the streams laid end to end."""


@pytest.fixture(scope="module")
def by_class(tmp_path_factory):
    """Address of a set in which each class is a split."""
    root = tmp_path_factory.mktemp("by-class")
    store, write_id, shards = open_store(str(root)), new_write_id(), []
    schema = Schema.from_columns({"image": "jpeg", "label": "int"})
    for label, (name, count) in enumerate(PER_CLASS.items()):
        uploader = ShardUploader(
            store, f"{name}/{write_id}/0", ShardBuilder(schema, ShardOptions(size_limit=8_000)), partition=name
        )
        for number in range(count):
            uploader.write({"image": square(3 * number + label), "label": label})
        shards += uploader.finish()
    publish(store, Draft(write_id, schema, tuple(shards), metadata={"classes": list(PER_CLASS)}))
    return str(root)


def classes_of(ids):
    return np.searchsorted([12, 18], np.array(ids), side="right")


@pytest.mark.slow
def test_a_stratified_mixture_of_splits_gives_each_batch_as_many_samples_of_each_class(config, by_class, squares):
    streams = tuple({"split": name, "proportion": 1} for name in PER_CLASS)
    balanced = replace(
        config, data=by_class, streams=streams, batching="stratified", eval_data=str(squares), batch_size=6, epochs=1
    )
    result = train(balanced)
    order = read_sample_order(balanced.run_dir)[0]
    assert len(order) == 21  # as many as there are, 7 of each class: 3 blue ones come more than once
    assert np.bincount(classes_of(order)).tolist() == [7, 7, 7]
    for begin in (0, 6, 12):
        assert np.bincount(classes_of(order[begin : begin + 6])).tolist() == [2, 2, 2]
    assert result.history[0]["eval_samples"] == 14


@pytest.mark.slow
def test_a_run_keeps_to_the_versions_of_its_streams(tmp_path):
    publish_squares(tmp_path / "one", train=10)
    publish_squares(tmp_path / "two", train=10)
    options = {"data": str(tmp_path / "one"), "run_dir": str(tmp_path / "run"), "device": "cpu"}
    assert launch(versions, str(tmp_path / "two"), **options) == [1, 1]
    publish_squares(tmp_path / "two", train=10, mode="overwrite")
    assert launch(versions, str(tmp_path / "two"), **options) == [1, 1]
    assert launch(versions, str(tmp_path / "two"), **{**options, "run_dir": str(tmp_path / "fresh")}) == [1, 2]


def versions(context):
    streams = [Stream(remote=context.run.data, proportion=1), Stream(remote=context.config, proportion=3)]
    loader = context.dataloader("train", batch_size=5, streams=streams)
    for step, _ in enumerate(loader, 1):
        if step == 2 and context.latest() is None:
            context.save(step, None, wait=True)
            break
    return [manifest.version for manifest in loader.streaming_dataset.manifests]


def test_the_version_of_a_stream_comes_before_that_of_the_loader(tmp_path):
    def opened(context):
        streams = [Stream(remote=context.run.data, version=1), Stream(remote=context.config)]
        loader = context.dataloader("train", batch_size=5, streams=streams, version=2)
        return [manifest.version for manifest in loader.streaming_dataset.manifests]

    for name in ("one", "two"):
        publish_squares(tmp_path / name, train=10)
        publish_squares(tmp_path / name, train=20, mode="overwrite")
    options = {"data": str(tmp_path / "one"), "run_dir": str(tmp_path / "run"), "device": "cpu"}
    assert launch(opened, str(tmp_path / "two"), **options) == [1, 2]


def test_a_run_keeps_to_the_version_of_a_tag_and_refuses_a_tag_of_another_one(tmp_path):
    publish_squares(tmp_path / "one", train=10)
    publish_squares(tmp_path / "one", train=20, mode="overwrite")
    tag(str(tmp_path / "one"), "golden", 1)
    options = {"data": str(tmp_path / "one"), "run_dir": str(tmp_path / "run"), "device": "cpu"}

    def opened(context):
        loader = context.dataloader("train", batch_size=5, tag="golden")
        context.save(1)
        return loader.streaming_dataset.manifest.version

    def opens_another_first(context):
        context.dataloader("train", batch_size=5)
        opened(context)

    assert launch(opened, **options, version=2) == 1  # the loader's own comes first, as with `version=`
    tag(str(tmp_path / "one"), "golden", 2, move=True)
    assert launch(opened, **options, version=2) == 1
    tag(str(tmp_path / "one"), "golden", 1, move=True)
    with pytest.raises(CursorError, match=r"version 1 has digest .* but this run is pinned to"):
        launch(opens_another_first, **{**options, "run_dir": str(tmp_path / "other")})


def test_other_streams_of_a_resumed_run_are_refused(tmp_path):
    publish_squares(tmp_path / "one", train=10)
    publish_squares(tmp_path / "two", train=20)
    options = {"data": str(tmp_path / "one"), "run_dir": str(tmp_path / "run"), "device": "cpu"}
    launch(versions, str(tmp_path / "one"), **options)
    with pytest.raises(CursorError, match=r"stream|digest|data set"):
        launch(versions, str(tmp_path / "two"), **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda data: {"streams": [Stream(remote=open_store(data))]}, "`streams` must be smalti.Stream"),
        (lambda data: {"streams": [{"remote": data}]}, "`streams` must be smalti.Stream"),
        (lambda data: {"streams": [Stream(remote=data)], "data": data}, "takes `data` or `streams`, not both"),
    ],
    ids=["store", "mapping", "both"],
)
def test_a_wrong_mixture_is_explained(tmp_path, arguments, message):
    def mixes(context):
        context.dataloader(batch_size=5, **arguments(context.run.data))

    publish_squares(tmp_path / "one", train=10)
    with pytest.raises(TrainingError, match=message):
        launch(mixes, data=str(tmp_path / "one"), run_dir=str(tmp_path / "run"), device="cpu")


@pytest.mark.parametrize(
    ("own", "other", "has_login"),
    [
        ("s3://lake/one", "s3://other/two", True),
        ("s3://lake/one", "gs://lake/two", False),
        ("https://one.example/set", "https://one.example/more", True),
        ("https://one.example/set", "https://two.example/set", False),
        ("sftp://me@one/set", "sftp://me@two/set", False),
        ("/data/one", "s3://lake/two", False),
    ],
)
def test_a_stream_gets_the_login_of_the_data_on_their_service_and_no_other_server_does(own, other, has_login):
    login = {"token": "secret"}
    run = PinnedData(RunConfig(run_dir="run", data=own, storage_options=login), ranks=None)
    assert run._pinned(Stream(remote=other), {}).storage_options == (login if has_login else {})
    assert run._pinned(Stream(remote=other, storage_options={"token": "its"}), {}).storage_options == {"token": "its"}


def test_other_data_of_a_loader_get_the_options_that_the_loader_is_given_and_no_others():
    login, its = {"key": "secret"}, {"key": "its"}
    run = PinnedData(RunConfig(run_dir="run", data="s3://lake/one", storage_options=login), ranks=None)
    assert run._pinned(run.single(None, None), {}).storage_options == login
    assert run._pinned(run.single("s3://lake/two", None), {}).storage_options == {}
    assert run._pinned(run.single("s3://lake/two", its), {}).storage_options == its
    assert run._pinned(run.single(None, its), {}).storage_options == its


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        (({"storage_options": {"secret": "x"}},), "a list of mappings with remote, split"),
        (({"proportion": -1},), "`streams`: .*proportion"),
        (({"proportion": 1, "repeat": 2},), "`streams`: "),
    ],
)
def test_wrong_streams_are_refused_with_the_configuration(config, streams, message):
    with pytest.raises(SchemaError, match=message):
        replace(config, streams=streams)


def test_batches_of_one_set_are_not_stratified(config):
    with pytest.raises(SchemaError, match="`batching` must be 'random' without `streams`"):
        replace(config, batching="stratified")


def test_class_weights_multiply_the_loss_of_training_and_not_that_of_an_evaluation(config):
    options = {"num_classes": 3, "image_size": 24, "label_smoothing": 0.0}
    scores, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
    model, batch = torch.nn.Identity(), {"pixels": scores, "labels": labels}
    plain = ImageClassification(**options)
    weighted = ImageClassification(**options, class_weights=(0.5, 1.0, 3.0))

    def losses(task, *, training):
        return task.loss(model.train(training), Pair(batch), config).losses

    expected = losses(plain, training=True) * torch.tensor([0.5, 3.0])
    assert torch.allclose(losses(weighted, training=True), expected)
    assert torch.equal(losses(weighted, training=False), losses(plain, training=False))


class Pair(dict):
    """A batch of two samples."""

    def __len__(self):
        return 2


def test_class_weights_are_as_many_as_classes(config, squares):
    options = {**config.task_options, "class_weights": (1, 2)}
    with pytest.raises(SchemaError, match="`class_weights` has 2 numbers; expected one for each of 3 classes"):
        train(replace(config, task_options=options))
