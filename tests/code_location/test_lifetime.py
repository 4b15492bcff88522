"""A step ends with its run; what a killed run worker leaves is in test_killed_run_worker."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from pipelines.home import REPOSITORY
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource
from smalti_dagster.runs.lifetime import watch_run


class Ends:
    """The acts of the watch of a run, on a run worker and an instance that answer what the test says."""

    def __init__(self) -> None:
        self.asked = self.ended = 0
        self.done = threading.Event()

    def watch(self, *, died: Callable[[], bool], over: Callable[[int], bool]) -> None:
        def ask() -> bool:
            self.asked += 1
            return over(self.asked)

        def end() -> None:
            self.ended += 1

        watch_run(died, ask, self.done, end=end)


def test_the_watch_ends_the_step_when_the_run_worker_died() -> None:
    ends = Ends()
    ends.watch(died=lambda: True, over=lambda _: False)
    assert (ends.ended, ends.asked) == (1, 1)


def test_the_watch_ends_the_step_when_the_run_is_over_although_its_worker_lives() -> None:
    ends = Ends()
    ends.watch(died=lambda: False, over=lambda time: time == 3)
    assert (ends.ended, ends.asked) == (1, 3)


def test_an_instance_that_does_not_answer_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    def over(time: int) -> bool:
        if time == 1:
            raise ConnectionError("the database is away")
        return time == 2

    ends = Ends()
    ends.watch(died=lambda: False, over=over)
    assert (ends.ended, ends.asked) == (1, 2)
    assert "cannot ask whether the run is over" in caplog.text


def test_after_the_step_the_watch_ends_nothing() -> None:
    ends = Ends()

    def died() -> bool:
        ends.done.set()
        return True

    ends.watch(died=died, over=lambda _: False)
    ends.watch(died=died, over=lambda _: True)
    assert ends.ended == 0


def cancel(context: dg.AssetExecutionContext) -> None:
    context.instance.report_run_canceled(context.run)


def materialized(instance: dg.DagsterInstance, asset: Any, **resources: Any) -> bool:
    """Runs the asset in this process; whether it was recorded as materialised."""
    done = dg.materialize([asset], instance=instance, resources=resources, raise_on_error=False)
    assert done.success == bool(done.get_asset_materialization_events())
    return done.success


def test_a_step_of_a_run_that_was_cancelled_meanwhile_is_not_recorded(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    @dg.asset
    def work(context: dg.AssetExecutionContext, storage: StorageResource) -> None:
        storage.refuse_if_over()
        cancel(context)
        storage.refuse_if_over()

    assert not materialized(instance, work, storage=storage)


def test_a_step_of_a_run_that_goes_on_is_recorded(instance: dg.DagsterInstance, storage: StorageResource) -> None:
    @dg.asset
    def work(storage: StorageResource) -> None:
        storage.refuse_if_over()

    assert materialized(instance, work, storage=storage)


@pytest.mark.torch
@pytest.mark.slow
def test_a_training_whose_run_was_cancelled_meanwhile_is_not_recorded(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    from smalti.torch.train import TrainConfig
    from tests.torch.train.conftest import publish_squares

    publish_squares(tmp_path / "set")
    trainer = TrainerResource(run_root=str(tmp_path / "runs"))

    @dg.asset
    def model(context: dg.AssetExecutionContext, trainer: TrainerResource) -> None:
        config = TrainConfig(
            data=str(tmp_path / "set"),
            run_dir=trainer.run_dir("one"),
            task_options={"num_classes": 3, "image_size": 24},
            model="tests.torch.train.tiny_models:convolution",
            epochs=1,
        )
        trainer.train(config, lambda event: cancel(context) if event["event"] == "start" else None)

    assert not materialized(instance, model, trainer=trainer)
    assert (tmp_path / "runs" / "one" / "result.json").exists()  # so that it was not stopped by something else


def test_pool_slots_of_a_dead_run_are_freed_when_its_processes_have_ended() -> None:
    """Ranks have ten seconds to save; a slot that is free before would run two trainings side by side."""
    from smalti.process import GRACE_SECONDS

    monitoring = yaml.safe_load((REPOSITORY / "deploy/sqlite/dagster.yaml").read_text())["run_monitoring"]
    freed_after = monitoring["free_slots_after_run_end_seconds"]
    assert freed_after >= GRACE_SECONDS
    assert freed_after + monitoring["poll_interval_seconds"] <= 15
