"""The trainer resource: where training runs are kept, and how they are launched unless an asset sets it."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from smalti.torch.train.config import LAUNCHERS
from smalti_dagster.runs.lifetime import RunBoundResource


class TrainerResource(RunBoundResource):
    """The library's trainer, with what a deployment decides about it."""

    run_root: str = Field(description="Address below which each training run has its checkpoints, logs and model.")
    launcher: str = Field(default="inline", description=f"One of {', '.join(LAUNCHERS)}.")
    num_processes: int = Field(default=1, ge=1, description="Training processes, one per rank.")

    def run_dir(self, name: str) -> str:
        """Return the address of one training run; the same name continues from its newest checkpoint."""
        return f"{self.run_root.rstrip('/')}/{name}"

    def train(self, config: Any, on_event: Callable[[dict[str, Any]], None]) -> Any:
        """Run `smalti.torch.train.train`: takes a `TrainConfig`, returns a `TrainResult`; blocks until it is done.

        Raises:
            dg.Failure: the run was ended meanwhile.
        """
        from smalti.torch.train import train

        result = train(config, on_event=on_event)
        self.refuse_if_over()
        return result

    def launch(
        self, function: Callable[..., Any], config: Any, on_event: Callable[[dict[str, Any]], None], **options: Any
    ) -> Any:
        """Run `smalti.torch.train.launch` with a function and its options; blocks until it is done.

        Raises:
            dg.Failure: the run was ended meanwhile.
        """
        from smalti.torch.train import launch

        result = launch(function, config, on_event=on_event, **options)
        self.refuse_if_over()
        return result

    def study(
        self, base: Any, space: Mapping[str, Any], options: Any, on_event: Callable[[dict[str, Any]], None]
    ) -> Any:
        """Run `smalti.torch.tuning.hyperparameter_study` of a `TrainConfig`; blocks until it is done.

        Raises:
            dg.Failure: the run was ended meanwhile.
        """
        from smalti.torch.tuning import hyperparameter_study

        result = hyperparameter_study(base, space, options, on_event=on_event)
        self.refuse_if_over()
        return result
