"""The accuracy of a saved model on a version of a shard set that it was not trained on."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smalti.errors import TrainingError
from smalti.storage import open_store
from smalti.torch.dataset import StreamingDataset
from smalti.torch.loader import StreamingDataLoader
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.data import PixelsAndLabels, to_device
from smalti.torch.train.models import load_model, logits_of
from smalti.torch.train.ranks import joined_ranks
from smalti.torch.train.run.folder import local_files

_NO_CLASS = -1  # of the set: a class that only the model knows


def measure_saved_model(
    model_dir: str,
    data: str,
    *,
    version: int,
    class_names: Sequence[str],
    split: str = "validation",
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> float:
    """Return the share of the samples of a split that a saved model classifies correctly.

    Classes are compared by name: a sample of a class that the model does not know is classified wrongly.

    Args:
        model_dir: Address of the folder `model` of a training run.
        data: Address of the shard set.
        version: Version of it.
        class_names: Its classes, in the order of its labels.
        split: Its samples.
        model_options: Options of the store of the model.
        data_options: Options of the store of the shard set.

    Raises:
        TrainingError: there is no model with names of classes, or the split has no samples.
        StoreError: model or data cannot be read.
    """
    with local_files(open_store(model_dir, model_options)) as folder:
        model, trained = load_model(folder)
    if not trained.class_names:
        raise TrainingError(f"{model_dir} does not name its classes: they cannot be compared with those of {data}")
    known = {name: label for label, name in enumerate(class_names)}
    labels = torch.tensor([known.get(name, _NO_CLASS) for name in trained.class_names])
    config = dataclasses.replace(
        trained,
        data=data,
        version=version,
        digest=None,
        num_classes=len(class_names),
        class_names=tuple(class_names),
        launcher="inline",
        num_processes=1,
        storage_options=data_options or {},
    )
    right, samples = _count(model, labels, config, split)
    if not samples:
        raise TrainingError(f"split {split!r} of version {version} of {data} has no samples")
    return right / samples


def _count(model: torch.nn.Module, labels: torch.Tensor, config: TrainConfig, split: str) -> tuple[int, int]:
    """Return how many samples of a split a model classifies correctly, and how many there are."""
    right = samples = 0
    with joined_ranks(config) as ranks, torch.inference_mode():
        dataset = StreamingDataset(
            remote=config.data,
            local=config.cache_dir,
            cache_limit=config.cache_limit,
            split=split,
            version=config.version,
            batch_size=config.batch_size,
            shuffle=False,
            transform=PixelsAndLabels(config.image_column, config.label_column, config.image_size),
            include_ids=True,
            world=ranks.world,
            storage_options=dict(config.storage_options),
        )
        with contextlib.closing(dataset):
            model.eval().to(ranks.device)
            of_set = labels.to(ranks.device)
            for columns in StreamingDataLoader(dataset, num_workers=config.num_workers):
                batch = to_device(columns, config, ranks.device, epoch=None)
                predicted = of_set[logits_of(model(batch.pixels)).argmax(dim=1)]
                is_real = batch.weights > 0
                right += int(((predicted == batch.labels) & is_real).sum())
                samples += int(is_real.sum())
    return right, samples
