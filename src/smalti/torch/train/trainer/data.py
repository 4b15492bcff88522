"""The data of a run: the version that all ranks open, the loaders over it, and the way of a batch to the model's input.

Images are decoded in the loader, and normalised and augmented on the device. Training images get random views, drawn
per sample from (seed, epoch, sample id): a sample's view depends on nothing else, neither on its batch nor on the
worker, the rank or the world.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smalti.dataset import OrderOptions
from smalti.errors import BadImageError, SchemaError
from smalti.images import decode_batch
from smalti.ledger import LedgerWriter
from smalti.torch.dataset import StreamingDataset
from smalti.torch.loader import StreamingDataLoader
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.pinned import PinnedData
from smalti.torch.train.ranks import Ranks
from smalti.torch.train.trainer.task import MARKS, Task, task_of, whole_numbers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet in RGB: what pretrained classifiers expect, and harmless for others."""
_MIN_ZOOM = 0.7
"""Smallest side of the crop, as a fraction of the image's side: half of the area stays visible."""
_JITTER = 0.15
"""Largest change of brightness, contrast and saturation, as a fraction of their value."""
_NUM_DRAWS = 7
"""Random numbers per sample: flip, zoom, shift x, shift y, brightness, contrast, saturation."""
# Constants of splitmix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class RunData:
    """The training samples of one version of the shard set, and its evaluation samples if there are any. Collective.

    Raises:
        CursorError: the version's digest is not the pinned one, or ranks see different versions.
        SchemaError: a column is missing or has the wrong encoding, or a split has no samples.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks, *, version: int | None, task: Task | None = None) -> None:
        self.task = task_of(config, task)
        self.config = config
        self._ranks, self._pinned = ranks, PinnedData(config, ranks)
        self.train = self._dataset(config.train_split, shuffle=True, version=version)
        manifest = self.train.manifest
        self.version, self.digest = manifest.version, manifest.digest
        self.config = config = self.task.configured(config, manifest)
        """With what the version of the data adds to it, such as the names of classes."""
        self.task.check(config, manifest.schema.columns())
        self.evaluation: StreamingDataset | None = None
        if config.eval_split is not None:
            self.evaluation = self._dataset(config.eval_split, shuffle=False)

    def loader(self, dataset: StreamingDataset, ledger: LedgerWriter | None = None) -> StreamingDataLoader:
        """Return a loader of this rank's share of each step, which records the steps in a ledger if one is given."""
        pin_memory = self._ranks.device.type == "cuda"
        return StreamingDataLoader(dataset, num_workers=self.config.num_workers, ledger=ledger, pin_memory=pin_memory)

    def _dataset(self, split: str | None, *, shuffle: bool, **options: Any) -> StreamingDataset:
        config = self.config
        options |= {
            "shuffle_seed": config.seed,
            "order": OrderOptions(affinity=config.affinity if shuffle else None),
            "transform": _with_marks(self.task.transform(config, training=shuffle)),
            "include_ids": True,
        }
        address = self._pinned.address()
        dataset = self._pinned.open(address, split, config.batch_size, shuffle=shuffle, options=options)
        if dataset.size == 0:
            raise SchemaError(
                f"split {split!r} of {config.data} has no samples; train on another split or write the data again."
            )
        return dataset


@dataclass(frozen=True)
class _WithMarks:
    """A transform of batches that keeps the ids and positions of their samples."""

    transform: Callable[[Mapping[str, Any]], Mapping[str, Any]]

    on_batches = True

    @property
    def thread_safe(self) -> bool:
        """True if loaders may call it from several threads."""
        return bool(getattr(self.transform, "thread_safe", False))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the transformed batch, with its marks."""
        return {**{name: batch[name] for name in MARKS}, **self.transform(batch)}


def _with_marks(transform: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    return _WithMarks(transform) if getattr(transform, "on_batches", False) else transform  # type: ignore[arg-type]


@dataclass(frozen=True)
class Views:
    """Random views of the n images of a batch; all arrays are float32 of shape (n,)."""

    flip: NDArray[np.float32]
    """-1 to mirror left and right, 1 otherwise."""
    zoom: NDArray[np.float32]
    """Side of the crop as a fraction of the image's side, in [0.7, 1]."""
    shift_x: NDArray[np.float32]
    shift_y: NDArray[np.float32]
    """Centre of the crop, in [-1, 1]; the crop lies inside the image."""
    brightness: NDArray[np.float32]
    contrast: NDArray[np.float32]
    saturation: NDArray[np.float32]
    """Factors around 1."""


def draw_views(seed: int, epoch: int, sample_ids: NDArray[np.int64]) -> Views:
    """Return the views of `sample_ids` in `epoch`. Pure; the view of a sample does not depend on the others."""
    u = _uniform(seed, epoch, sample_ids)
    zoom = 1.0 - (1.0 - _MIN_ZOOM) * u[1]
    jitter = 1.0 + _JITTER * (2.0 * u[4:7] - 1.0)
    return Views(
        flip=np.where(u[0] < 0.5, -1.0, 1.0).astype(np.float32),
        zoom=zoom.astype(np.float32),
        shift_x=((1.0 - zoom) * (2.0 * u[2] - 1.0)).astype(np.float32),
        shift_y=((1.0 - zoom) * (2.0 * u[3] - 1.0)).astype(np.float32),
        brightness=jitter[0].astype(np.float32),
        contrast=jitter[1].astype(np.float32),
        saturation=jitter[2].astype(np.float32),
    )


def apply_views(pixels: "Tensor", views: Views) -> "Tensor":
    """Crop and mirror images, and change their colours, as `views` say; sampled bilinearly, clipped to [0, 1].

    `pixels` are floats of shape (n, 3, height, width) in [0, 1]; so is the result.
    """
    import torch
    from torch.nn import functional

    def column(values: NDArray[np.float32]) -> "Tensor":
        return torch.from_numpy(values).to(pixels.device)

    theta = pixels.new_zeros((len(pixels), 2, 3))
    theta[:, 0, 0] = column(views.zoom * views.flip)
    theta[:, 0, 2] = column(views.shift_x)
    theta[:, 1, 1] = column(views.zoom)
    theta[:, 1, 2] = column(views.shift_y)
    grid = functional.affine_grid(theta, list(pixels.shape), align_corners=False)
    seen = functional.grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return _jitter(seen, column(views.brightness), column(views.contrast), column(views.saturation))


def _jitter(pixels: "Tensor", brightness: "Tensor", contrast: "Tensor", saturation: "Tensor") -> "Tensor":
    import torch

    def spread(factor: "Tensor") -> "Tensor":
        return factor.view(-1, 1, 1, 1)

    grey = pixels.mean(dim=1, keepdim=True)
    pixels = torch.lerp(grey, pixels, spread(saturation))
    level = grey.mean(dim=(2, 3), keepdim=True)
    pixels = torch.lerp(level, pixels, spread(contrast))
    return (pixels * spread(brightness)).clamp(0.0, 1.0)


def _uniform(seed: int, epoch: int, sample_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return numbers in [0, 1), shape (7, n): splitmix64 of (seed, epoch, id, draw), equal on every platform."""
    with np.errstate(over="ignore"):
        key = _mix(np.array([seed % (1 << 64)], dtype=np.uint64))
        key = _mix(key ^ np.array([epoch % (1 << 64)], dtype=np.uint64))
        per_sample = _mix(key ^ np.asarray(sample_ids, dtype=np.int64).view(np.uint64))
        draws = np.arange(1, _NUM_DRAWS + 1, dtype=np.uint64)[:, None] * _GOLDEN
        bits = _mix(per_sample[None, :] ^ draws)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class PixelsAndLabels:
    """A batch transform that turns the encoded images of one column into uint8 pixels of shape (n, size, size, 3)."""

    image_column: str
    label_column: str
    size: int

    on_batches = True
    """The transform is called with whole column batches."""
    thread_safe = True
    """Loaders may call it from several threads; it has no state."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pixels, labels and ids of the batch, without its other columns.

        Raises:
            BadImageError: an image cannot be decoded; the message names the sample ids of its batch.
        """
        images = batch[self.image_column]
        try:
            pixels = decode_batch(images, size=self.size)
        except BadImageError as error:
            ids = [int(i) for i in batch["_sample_id"]]
            raise BadImageError(f"{error} It is one of the samples {ids}.", sample_ids=ids) from error
        others = {name: batch[name] for name in (self.label_column, "_sample_id", "_position")}
        return {self.image_column: pixels, **others}


@dataclass(frozen=True)
class DeviceBatch:
    """One batch, ready for the model."""

    pixels: "torch.Tensor"
    """float32, shape (n, 3, size, size), normalised."""
    labels: "torch.Tensor"
    """int64, shape (n,)."""
    weights: "torch.Tensor"
    """float32, shape (n,): 1, or 0 for padding."""
    sample_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Place in the epoch's global order; -1 = padding."""

    @property
    def num_real(self) -> int:
        """Number of samples that are not padding."""
        return int((self.positions >= 0).sum())


def to_device(
    batch: Mapping[str, Any], config: TrainConfig, device: "torch.device", *, epoch: int | None
) -> DeviceBatch:
    """Move a decoded batch to `device` and normalise it; augment it for `epoch` unless that is None.

    Raises:
        SchemaError: a label lies outside [0, num_classes).
    """
    ids, positions = (whole_numbers(batch[name]) for name in MARKS)
    labels = _check_labels(whole_numbers(batch[config.label_column]), ids, config)
    pixels = _pixels(batch[config.image_column], device)
    if epoch is not None and config.augment:
        pixels = apply_views(pixels, draw_views(config.seed, epoch, ids))
    return DeviceBatch(
        pixels=_in_memory_format(_normalised(pixels), channels_last=config.channels_last),
        labels=_tensor(labels, device),
        weights=_tensor((positions >= 0).astype(np.float32), device),
        sample_ids=ids,
        positions=positions,
    )


def _check_labels(labels: NDArray[np.int64], ids: NDArray[np.int64], config: TrainConfig) -> NDArray[np.int64]:
    """Return the labels if all of them are class numbers."""
    wrong = np.flatnonzero((labels < 0) | (labels >= config.num_classes))
    if len(wrong):
        first = int(wrong[0])
        raise SchemaError(
            f"column '{config.label_column}' of sample {int(ids[first])} holds {int(labels[first])}, but "
            f"class numbers must lie in [0, {config.num_classes}); set `num_classes` to what the data hold "
            "or correct the data.",
            column=config.label_column,
            sample_id=int(ids[first]),
            label=int(labels[first]),
        )
    return labels


def _pixels(images: Any, device: "torch.device") -> "torch.Tensor":
    import torch

    tensor = images if isinstance(images, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(images))
    # The decoder's (n, h, w, 3) is (n, 3, h, w) in channels_last format: permuting it copies nothing.
    return tensor.to(device, non_blocking=True).permute(0, 3, 1, 2).to(torch.float32).div_(255.0)


def _normalised(pixels: "torch.Tensor") -> "torch.Tensor":
    mean = pixels.new_tensor(MEAN).view(1, 3, 1, 1)
    std = pixels.new_tensor(STD).view(1, 3, 1, 1)
    return (pixels - mean) / std


def _in_memory_format(pixels: "torch.Tensor", *, channels_last: bool) -> "torch.Tensor":
    import torch

    return pixels.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def _tensor(array: NDArray[Any], device: "torch.device") -> "torch.Tensor":
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
