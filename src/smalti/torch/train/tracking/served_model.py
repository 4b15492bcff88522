"""A trained image classifier as a model of MLflow: with its signature, and loaded without unpickling anything."""

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.torch.train.config import IMAGES, ImageOptions, TrainConfig
from smalti.torch.train.run.files import read_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ServedModel:
    """A model that MLflow calls: pixels in, probabilities of the classes out."""

    def __init__(self, folder: Path) -> None:
        from smalti.torch.train.trainer.task import load_model, task_of

        self._model, self._config = load_model(folder)
        self._model.eval()
        self._task: Any = task_of(self._config)

    def predict(self, images: "NDArray[np.uint8]") -> "NDArray[np.float32]":
        """Return the probabilities (n, classes) of images (n, height, width, 3), RGB from 0 to 255."""
        import torch

        with torch.inference_mode():
            probabilities: NDArray[np.float32] = self._task.of_pixels(self._model, images, self._config).numpy()
        return probabilities


def write_mlflow_model(model: Path, folder: Path, *, run_id: str) -> bool:
    """Write a model of MLflow that holds the folder `model` of a run; return False if it is no image classifier.

    Args:
        model: a local folder.
        folder: to write; it must not exist.
        run_id: of the run in MLflow.
    """
    import mlflow.pyfunc
    import numpy as np
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.types.schema import Schema, TensorSpec

    settings = read_json(model / "smalti.json")
    trained = TrainConfig.from_json(settings["train"])
    if trained.task != IMAGES:
        return False
    options = ImageOptions(**trained.task_options)
    side = options.image_size
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(np.uint8), (-1, side, side, 3))]),
        outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, options.num_classes))]),
    )
    described: Any = Model(run_id=run_id)
    mlflow.pyfunc.save_model(
        str(folder),
        loader_module=__name__,
        data_path=str(model),
        signature=signature,
        mlflow_model=described,
        pip_requirements=[f"smalti[train]=={importlib.metadata.version('smalti')}"],
        metadata={"class_names": settings["class_names"]},
    )
    return True


def _load_pyfunc(path: str) -> ServedModel:
    """Load the model; MLflow calls this function by its name."""
    return ServedModel(Path(path))
