"""A saved model with its preprocessing and labels, as a function of encoded images that can be sent to other processes.

It is sent by its address in a store, or with its files if they are in a local folder. A process that receives several
copies, such as one for each Spark task, loads the model once.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smalti.errors import BadImageError, TrainingError
from smalti.images import decode_batch
from smalti.images.header import exif_orientation
from smalti.images.pixels import turn_upright
from smalti.regular_files import open_regular, read_regular
from smalti.storage import LocalStore, open_store
from smalti.storage.local_files import local_files
from smalti.torch.train.config import IMAGES
from smalti.torch.train.launchers.spark import importable, read_source
from smalti.torch.train.tasks.images import ImageClassification, as_pixels, normalised
from smalti.torch.train.trainer.models import load_model, logits_of
from smalti.torch.train.trainer.task import task_of

PREDICTED, NAME, CONFIDENCE = "predicted", "predicted_name", "confidence"
"""Columns of predictions: the number of the class, its name if the model names its classes, and its probability."""
_KEPT = 2  # models that a process keeps for further copies
_UPRIGHT = 1  # EXIF orientation of an image that need not be turned
_CHUNK = 1 << 20  # bytes read at once

Predictions = dict[str, NDArray[Any]]
"""int64 `predicted`, texts `predicted_name` if the model names its classes, and float32 `confidence` in [0, 1]."""


class Predictor:
    """A saved image classifier: `predictor(images)` returns the classes of encoded images.

    Args:
        model: address of the folder `model` of a training run.
        options: options of its store. A copy that is sent to another process contains them, if the model is not in a
            local folder.
        batch_size: images that the model gets at once.

    Raises:
        TrainingError: there is no such model, or it was trained for another task.
        StoreError: it cannot be read.
    """

    def __init__(self, model: str | Path, options: Mapping[str, Any] | None = None, *, batch_size: int = 64) -> None:
        self.address, self.options, self.batch_size = str(model), dict(options or {}), batch_size
        with local_files(open_store(self.address, self.options)) as folder:
            self.digest = _digest_of(folder, self.address)
            """SHA-256 of the model's files."""
            self.model, self.config = load_model(folder)
        if self.config.task != IMAGES:
            raise TrainingError(
                f"{self.address} was trained for the task '{self.config.task}'; only image classifiers can predict.",
                task=self.config.task,
            )
        task = task_of(self.config)
        assert isinstance(task, ImageClassification)  # noqa: S101 - as TASKS says
        self.task = task
        """The task that the model was trained for."""
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.eval().to(self.device)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of their numbers; empty if the model does not name them."""
        return self.task.class_names

    @property
    def columns(self) -> dict[str, str]:
        """The columns of predictions with their encodings in a shard set."""
        return {PREDICTED: "int", **({NAME: "str"} if self.class_names else {}), CONFIDENCE: "float32"}

    def __call__(self, images: Sequence[bytes], *, upright: bool = True) -> Predictions:
        """Return the class of each image, its name and its probability.

        Args:
            images: encoded images.
            upright: whether images are turned as their EXIF orientation says, as preparation does with photos. Samples
                of a shard set are not, in training neither.

        Raises:
            BadImageError: an image cannot be decoded; `index` is its place.
        """
        cuts = range(0, len(images), self.batch_size)
        parts = [self._best(images[begin : begin + self.batch_size], begin, upright=upright) for begin in cuts]
        numbers = np.concatenate([classes for classes, _ in parts] or [np.zeros(0, np.int64)])
        confidences = np.concatenate([values for _, values in parts] or [np.zeros(0, np.float32)])
        names = {NAME: np.array(self.class_names, dtype=object)[numbers]} if self.class_names else {}
        return {PREDICTED: numbers, **names, CONFIDENCE: confidences}

    def _best(
        self, images: Sequence[bytes], first: int, *, upright: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        try:
            found = self.probabilities(images, upright=upright).max(dim=1)
        except BadImageError as error:
            raise BadImageError(str(error), **{**error.facts, "index": first + error.facts["index"]}) from error
        return found.indices.numpy(), found.values.numpy()

    def probabilities(self, images: Sequence[bytes], *, upright: bool = True) -> torch.Tensor:
        """Return the probability of each class, float32 on the CPU, shape (images, classes); all images at once."""
        pixels = decode_batch(images, size=self.task.image_size)
        if upright:
            for place, image in enumerate(images):
                if (orientation := exif_orientation(image)) != _UPRIGHT:
                    # A centred square may be turned after it was cut.
                    pixels[place] = turn_upright(pixels[place].copy(), orientation)
        return self.of_pixels(pixels)

    def of_pixels(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        """Return the probability of each class of decoded images, shape (n, size, size, 3), as `probabilities` does."""
        with torch.inference_mode():
            return logits_of(self.model(self.normalised(pixels))).float().softmax(dim=1).cpu()

    def normalised(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        """Return decoded images, shape (n, size, size, 3), as the input of the model."""
        return normalised(as_pixels(pixels, self.device), channels_last=self.config.channels_last)

    def with_files(self) -> "SentFiles":
        """Return the predictor for another process that need not see the address, nor the options of its store."""
        return SentFiles(self)

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(open_store(self.address, self.options), LocalStore):
            return SentFiles(self).__reduce__()
        return _received, (self.address, self.options, None, *self._facts())

    def _facts(self) -> tuple[Any, ...]:
        return self.digest, self.batch_size, self.config.model, read_source(self.config.model)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"


class SentFiles:
    """A predictor that is pickled with the files of its model; what is unpickled is a `Predictor`."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def __reduce__(self) -> tuple[Any, ...]:
        sent = self.predictor
        with local_files(open_store(sent.address, sent.options)) as folder:
            files = {path.name: read_regular(path) for path in _files_in(folder)}
        return _received, (sent.address, None, files, *sent._facts())


_loaded: dict[str, Predictor] = {}
"""Predictors that this process has received, by the digest of their files, newest last."""


def _received(
    address: str,
    options: Mapping[str, Any] | None,
    files: Mapping[str, bytes] | None,
    digest: str,
    batch_size: int,
    model: str,
    source: Mapping[str, str],
) -> Predictor:
    """Return the predictor of these files, or of those at the address.

    Raises:
        TrainingError: the model at the address is another one by now.
    """
    found = _loaded.get(digest)
    if found is None:
        with TemporaryDirectory(prefix="smalti-model-") as folder, importable(model, source):
            for name, content in (files or {}).items():
                Path(folder, name).write_bytes(content)
            found = Predictor(address if files is None else folder, options, batch_size=batch_size)
        if found.digest != digest:
            raise TrainingError(f"the model {address} was replaced while it was in use; start again.", model=address)
        found.address = address
        _loaded[digest] = found
        for name in list(_loaded)[:-_KEPT]:
            del _loaded[name]
    found.batch_size = batch_size
    return found


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _digest_of(folder: Path, address: str) -> str:
    files = _files_in(folder) if folder.is_dir() else []
    if "smalti.json" not in {path.name for path in files}:
        raise TrainingError(
            f"{address} holds no model of a training run: smalti.json is missing. Give the folder `model` of a run.",
            model=address,
        )
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with open_regular(path) as file:
            while part := file.read(_CHUNK):
                digest.update(part)
    return digest.hexdigest()
