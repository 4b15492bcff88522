"""Use of trained models: predictions for folders, DataFrames and shard sets, and models as files for other programs.

`predict` and `export` start from the folder `model` of a training run. The function from samples to predictions
that they share is `smalti.torch.train.Predictor`. Start reading at `prediction`. Names are imported on first use.
"""

from typing import TYPE_CHECKING

from smalti.extras import lazy_names

if TYPE_CHECKING:
    from smalti.inference.exported import Exported, export
    from smalti.inference.prediction import predict

_HOMES = {"Exported": "exported", "export": "exported", "predict": "prediction"}
__all__ = ["Exported", "export", "predict"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
