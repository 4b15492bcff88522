"""Steps that are executed again after a fault of the storage, and a training that then continues."""

from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from pydantic import PrivateAttr

from smalti.catalog import tags, vacuum
from smalti.errors import StoreAuthError, StoreError, StoreTimeout, TrainingError
from smalti_dagster.models.model import build_model
from smalti_dagster.resources.storage import LocalStorage, StorageResource
from smalti_dagster.resources.training import TrainerResource
from smalti_dagster.stage import STORE_RETRIES
from tests.code_location.declared import FLOWERS
from tests.code_location.events import op_config
from tests.code_location.shard_sets import make_version, rows_of, shards

assert FLOWERS.train is not None
MODEL = build_model(FLOWERS, FLOWERS.train)
OUTAGE, BRIEF = StoreTimeout("no answer"), StoreError("reset by peer", is_transient=True)
OF_RANK = TrainingError("rank 1 of 2 ended with exit code 75", is_transient=True)


class Trainer(TrainerResource):
    """A trainer that fails as planned, one fault for each attempt, and else only says where it was told to train."""

    place: str
    _faults: list[Exception] = PrivateAttr(default_factory=list)
    _seen: list[Any] = PrivateAttr(default_factory=list)

    def train(self, config: Any, on_event: Any) -> Any:
        self._seen.append((config.run_dir, config.version, tags(self.place)))
        if self._faults:
            raise self._faults.pop(0)
        last = {"eval_samples": 2, "train_loss": 0.5, "loss": 0.5, "accuracy": 0.5}
        return SimpleNamespace(
            accuracy=0.5, loss=0.5, history=[last], evaluation=last, images_per_second=1.0, data_fraction=0.0,
            seconds=1.0, steps=1, epochs=1, model_dir="model", checkpoint="checkpoint", resumed_from={"step": 7},
        )  # fmt: skip


@pytest.fixture
def quick(storage: StorageResource) -> StorageResource:
    """Storage whose outages are waited for no time."""
    return LocalStorage(root=storage.root, retry_seconds=0)


def train(
    instance: dg.DagsterInstance, storage: StorageResource, *faults: Exception, **pinned: Any
) -> tuple[Any, list[Any]]:
    """A run in which the attempts at the training fail as given, and what each of them was told."""
    if not pinned:
        make_version(instance, storage, {"train": rows_of(2, 2)})
    trainer = Trainer(run_root="runs", place=storage.url("flowers/shards"))
    trainer._faults, seen = list(faults), trainer._seen
    selection = dg.AssetSelection.assets(FLOWERS.key("model")).without_checks()
    resources = {"smalti_storage": storage, "smalti_trainer": dg.ResourceDefinition.hardcoded_resource(trainer)}
    done = dg.materialize(
        [MODEL],
        selection=selection,
        instance=instance,
        resources=resources,
        raise_on_error=False,
        run_config=op_config({"model": pinned}),
    )
    return done, seen


@pytest.mark.torch
@pytest.mark.parametrize("fault", [OUTAGE, BRIEF, OF_RANK])
def test_a_training_goes_on_in_the_same_folder_and_on_the_same_version_after_an_outage_of_the_storage(
    instance: dg.DagsterInstance, quick: StorageResource, fault: Exception
) -> None:
    done, seen = train(instance, quick, fault)
    assert done.success
    [(first_folder, first_version, kept), (folder, version, _)] = seen
    assert (folder, version) == (first_folder, first_version) == (f"runs/flowers/{done.run_id}", 1)
    assert kept == {f"training-{done.run_id}": 1}
    [made] = done.asset_materializations_for_node(FLOWERS.model_op)
    assert made.metadata["resumed_at_step"].value == 7
    assert tags(shards(quick)) == {}


@pytest.mark.torch
def test_an_outage_that_lasts_ends_the_step_after_its_retries(
    instance: dg.DagsterInstance, quick: StorageResource
) -> None:
    done, seen = train(instance, quick, *[OUTAGE] * 9)
    assert not done.success
    assert len(seen) == 1 + STORE_RETRIES


@pytest.mark.torch
@pytest.mark.parametrize(
    "fault", [StoreAuthError("refused"), StoreError("the disk is full"), TrainingError("rank 1"), ValueError("wrong")]
)
def test_other_faults_are_not_tried_again(
    instance: dg.DagsterInstance, quick: StorageResource, fault: Exception
) -> None:
    done, seen = train(instance, quick, fault)
    assert not done.success
    assert len(seen) == 1


@pytest.mark.torch
def test_a_version_that_was_vacuumed_between_the_request_and_the_run_is_named_and_not_tried_again(
    instance: dg.DagsterInstance, quick: StorageResource
) -> None:
    """The sensor requests the version that is checked by then."""
    first = make_version(instance, quick, {"train": rows_of(2, 2)})
    make_version(instance, quick, {"train": rows_of(3, 3)})
    assert vacuum(shards(quick), older_than="0s", unsafe_ttl=True, dry_run=False).expired == (1,)
    done, seen = train(instance, quick, version=1, digest=first.digest)
    assert not done.success
    assert not seen
    [failed] = [event for event in done.all_events if event.is_step_failure]
    assert "version 1 was removed by a vacuum" in str(failed.step_failure_data.error)
    assert tags(shards(quick)) == {}
