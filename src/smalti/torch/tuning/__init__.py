"""Studies of hyperparameters: many trainings with different settings, side by side, of which the best is found.

`hyperparameter_study` runs trials of a `TrainConfig`, or of a function of `launch`. Optuna proposes their settings.
Start reading at `study`. Names are imported on first use, so that `space` can be read without torch.
"""

from typing import TYPE_CHECKING

from smalti.extras import lazy_names

if TYPE_CHECKING:
    from smalti.torch.tuning.space import StudyOptions, with_params
    from smalti.torch.tuning.study import StudyResult, Trial, hyperparameter_study

_HOMES = {
    "StudyOptions": "space",
    "StudyResult": "study",
    "Trial": "study",
    "hyperparameter_study": "study",
    "with_params": "space",
}
__all__ = ["StudyOptions", "StudyResult", "Trial", "hyperparameter_study", "with_params"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
