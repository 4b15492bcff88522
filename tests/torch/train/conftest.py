"""A tiny shard set of coloured squares that a small model learns in seconds."""

import signal
from dataclasses import replace

import numpy as np
import pytest

from smalti.catalog import Draft, Manifest, new_write_id, publish
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.images import encode_jpeg
from smalti.storage import open_store
from smalti.torch.train.config import TrainConfig
from smalti.writer import ShardUploader

TRAIN, EVAL = 50, 14
"""Neither number is divisible by the batch size of 8, so the last step of an epoch is padded."""


@pytest.fixture(autouse=True)
def default_sigterm():
    """Restore the default handler: other libraries in the test process (Dagster) install their own."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def square(number: int) -> bytes:
    """A noisy square, mostly red, green or blue by `number` mod 3."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 120, (24, 24, 3))
    pixels[:, :, number % 3] += 110
    return encode_jpeg(pixels.astype(np.uint8), 90)


def publish_squares(
    root, *, train: int = TRAIN, mode: str = "create", label=lambda number: number % 3, metadata=None
) -> Manifest:
    """A version with the splits train and validation, a few samples per shard."""
    store, write_id = open_store(root), new_write_id()
    schema = Schema.from_columns({"image": "jpeg", "label": "int"})
    shards = []
    for split, numbers in (("train", range(train)), ("validation", range(1000, 1000 + EVAL))):
        builder = ShardBuilder(schema, ShardOptions(size_limit=8_000))
        uploader = ShardUploader(store, f"{split}/{write_id}/0", builder, partition=split)
        for number in numbers:
            uploader.write({"image": square(number), "label": label(number)})
        shards += uploader.finish()
    return publish(store, Draft(write_id, schema, tuple(shards), metadata=metadata or {}), mode=mode)


@pytest.fixture(scope="session")
def squares(tmp_path_factory):
    """Root of the shard set; read only."""
    root = tmp_path_factory.mktemp("squares")
    publish_squares(root)
    return root


@pytest.fixture
def config(squares, tmp_path) -> TrainConfig:
    """Two epochs of seven steps each, with a model of three layers."""
    return TrainConfig(
        data=str(squares),
        run_dir=str(tmp_path / "run"),
        task_options={"num_classes": 3, "class_names": ["red", "green", "blue"], "image_size": 24},
        model="tests.torch.train.tiny_models:convolution",
        epochs=2,
        batch_size=8,
        learning_rate=0.02,
        checkpoint_every=3,
        log_every=2,
        log_samples=True,
        device="cpu",
        timeout_seconds=280.0,
    )


@pytest.fixture
def in_processes(config) -> TrainConfig:
    """The same configuration with two processes."""
    return replace(config, launcher="processes", num_processes=2)


@pytest.fixture(scope="session")
def trained(squares, tmp_path_factory):
    """Return the result of a training that is neither hopeless nor perfect."""
    from smalti.torch.train import train

    return train(
        TrainConfig(
            data=str(squares), run_dir=str(tmp_path_factory.mktemp("run")),
            task_options={"num_classes": 3, "class_names": ["red", "green", "blue"], "image_size": 24},
            model="tests.torch.train.tiny_models:convolution", epochs=2, batch_size=8, device="cpu",
        )
    )  # fmt: skip
