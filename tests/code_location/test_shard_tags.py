"""The tag `checked`, which follows the checks, and the tags that keep versions for trainings."""

from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from smalti.catalog import Manifest, tag, tags
from smalti.catalog.tags import tag_bytes
from smalti.errors import StoreError
from smalti.storage.store import Tagged
from smalti_dagster.checks.drift import class_shares, class_shift, column_losses
from smalti_dagster.checks.shards import build_shard_checks
from smalti_dagster.checks.sums import find_losses
from smalti_dagster.declaration import Checks, Source, Stage
from smalti_dagster.models.model import build_model
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource
from smalti_dagster.runs.steps import awaits_retry
from smalti_dagster.shard_tags import CHECKED, advance, kept_for_training, release_ended_trainings
from tests.code_location.declared import FLOWERS, declare
from tests.code_location.events import end, new_run, op_config
from tests.code_location.instances import instance_in_folder
from tests.code_location.shard_sets import (
    execute_checks,
    make_version,
    publish_rows,
    rows_of,
    shards,
)
from tests.stores import MemoryStore

assert FLOWERS.train is not None
MODEL = build_model(FLOWERS, FLOWERS.train)
FIVE = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]


def checked(storage: StorageResource) -> int | None:
    return tags(shards(storage)).get(CHECKED)


def versions(count: int) -> MemoryStore:
    """A set with so many versions."""
    store = MemoryStore()
    for _ in range(count):
        publish_rows(store, {"train": rows_of(1)})
    return store


def damage(storage: StorageResource, manifest: Manifest) -> None:
    """Flip a bit of the first shard; the second time, flip it back."""
    path = shards(storage).local_path(manifest.shards[0].stored.basename)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


# ---------------------------------------------------------------- checked


def test_a_version_is_checked_once_the_last_of_its_blocking_checks_has_passed(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    make_version(instance, storage, {"train": rows_of(2, 2)})
    found = []
    for check in ("no_class_vanished", "every_row_is_in_the_shards", "hashes_verify"):
        [evaluation] = execute_checks(instance, storage, check).values()
        assert evaluation.passed
        found.append(checked(storage))
    assert found == [None, None, 1]


def test_a_version_whose_check_failed_is_checked_when_that_one_is_executed_again_and_passes(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    make_version(instance, storage, {"train": rows_of(2, 2)})
    execute_checks(instance, storage)
    second = make_version(instance, storage, {"train": rows_of(3, 3)})
    damage(storage, second)
    assert not execute_checks(instance, storage, "hashes_verify")["hashes_verify"].passed
    damage(storage, second)
    execute_checks(instance, storage, "no_class_vanished", "every_row_is_in_the_shards")
    assert checked(storage) == 1
    execute_checks(instance, storage, "hashes_verify")
    assert checked(storage) == 2


def test_passes_of_an_earlier_version_do_not_count_for_a_later_one(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    make_version(instance, storage, {"train": rows_of(2, 2)})
    execute_checks(instance, storage)
    make_version(instance, storage, {"train": rows_of(2, 2)})
    execute_checks(instance, storage, "hashes_verify")
    assert checked(storage) == 1
    execute_checks(instance, storage)
    assert checked(storage) == 2


def test_the_tag_does_not_move_back() -> None:
    store = versions(3)
    assert advance(store, 2) == 2
    assert advance(store, 1) == 2
    assert tags(store) == {CHECKED: 2}
    assert advance(store, 3) == 3


def test_the_tag_moves_on_stores_that_cannot_replace_conditionally() -> None:
    """Volumes of Unity Catalog."""

    store = versions(2)
    store.plant("put_if_match", error=StoreError("no conditional puts", is_unsupported=True))
    assert [advance(store, 1), advance(store, 2)] == [1, 2]
    assert tags(store) == {CHECKED: 2}


class Overtaken(MemoryStore):
    """A store in which another process moves the tag just before it would be replaced."""

    by = 0

    def get_tagged(self, key: str) -> Tagged:
        if self.by:
            self.by, number = 0, self.by
            self.put(key, tag_bytes(CHECKED, number))
        return super().get_tagged(key)


def test_the_tag_does_not_move_back_when_another_run_moves_it_at_the_same_time() -> None:
    store = Overtaken()
    for _ in range(3):
        publish_rows(store, {"train": rows_of(1)})
    advance(store, 1)
    store.by = 3
    assert advance(store, 2) == 3
    assert tags(store) == {CHECKED: 3}


def test_a_version_is_not_checked_past_one_that_it_was_not_compared_with(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    """Two runs at once: the classes of version 3 were compared with version 1, and then version 2 was checked."""
    make_version(instance, storage, {"train": rows_of(2, 2)})
    execute_checks(instance, storage)
    make_version(instance, storage, {"train": rows_of(2, 2, 2)}, classes=["daisy", "roses", "tulips"])
    make_version(instance, storage, {"train": rows_of(2, 2)})
    execute_checks(instance, storage, "no_class_vanished", "every_row_is_in_the_shards")
    tag(shards(storage), CHECKED, 2, move=True)  # by the checks of version 2, in another process
    last = execute_checks(instance, storage, "hashes_verify")["hashes_verify"]
    assert last.passed
    state = "not moved: it names version 2 by now; no_class_vanished has to be executed again"
    assert last.metadata["tag_checked"].value == state
    again = execute_checks(instance, storage, "no_class_vanished")["no_class_vanished"]
    assert "Since version 2" in str(again.description)
    assert "1 of 3 classes are gone (tulips)" in str(again.description)
    assert checked(storage) == 2


def test_a_check_that_cannot_read_its_version_has_failed_and_its_earlier_pass_does_not_count(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    manifest = make_version(instance, storage, {"train": rows_of(2, 2)})
    execute_checks(instance, storage, "no_class_vanished", "every_row_is_in_the_shards")
    path = shards(storage).local_path(manifest.shards[0].stored.basename)
    assert path is not None
    data = path.read_bytes()
    path.unlink()
    gone = execute_checks(instance, storage, "every_row_is_in_the_shards")["every_row_is_in_the_shards"]
    assert not gone.passed
    assert path.name in str(gone.description)
    path.write_bytes(data)
    assert execute_checks(instance, storage, "hashes_verify")["hashes_verify"].passed
    assert checked(storage) is None
    execute_checks(instance, storage, "every_row_is_in_the_shards")
    assert checked(storage) == 1


@pytest.mark.parametrize(
    ("stage", "name", "metadata", "is_mended"),
    [
        ("prepared", "few_images_were_left_out", {"digest": "table1"}, True),
        ("raw", "every_class_can_be_split", {}, False),
    ],
)
def test_a_version_whose_rows_failed_a_blocking_check_is_not_checked_where_the_shards_are_made_by_themselves(
    instance: dg.DagsterInstance,
    storage: StorageResource,
    stage: Stage,
    name: str,
    metadata: dict[str, Any],
    is_mended: bool,
) -> None:
    """Until the check passes, or is not declared any more."""
    make_version(instance, storage, {"train": rows_of(2, 2)})
    for passed, severity, moved in ((False, "block", None), (is_mended, "block" if is_mended else "none", 1)):
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(FLOWERS.key(stage), name, passed, metadata, blocking=True)
        )
        chosen: Any = {name: severity}
        execute_checks(instance, storage, declared=declare(checks=Checks(severity=chosen)))
        assert checked(storage) == moved


# ---------------------------------------------------------------- what is gone


def test_losing_four_of_five_classes_blocks_compared_with_the_last_good_version_and_not_with_the_bad_one_before(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    make_version(instance, storage, {"train": rows_of(2, 2, 2, 2, 2)}, classes=FIVE)
    execute_checks(instance, storage)
    for number in (2, 3):
        make_version(instance, storage, {"train": rows_of(20)}, classes=["roses"])
        evaluation = execute_checks(instance, storage)["no_class_vanished"]
        assert not evaluation.passed
        assert evaluation.blocking
        assert evaluation.severity is dg.AssetCheckSeverity.ERROR
        description = str(evaluation.description)
        assert "Since version 1" in description
        assert "4 of 5 classes are gone (daisy, dandelion, sunflowers, tulips)" in description
        assert "accept_removed" in description
        assert evaluation.metadata["version"].value == number
        assert checked(storage) == 1


def test_what_the_configuration_names_may_go(instance: dg.DagsterInstance, storage: StorageResource) -> None:
    make_version(instance, storage, {"train": rows_of(2, 2, 2, 2, 2)}, classes=FIVE)
    execute_checks(instance, storage)
    gone = [name for name in FIVE if name != "roses"]
    make_version(instance, storage, {"train": rows_of(2)}, classes=["roses"], accept_removed=gone[:3])
    assert not execute_checks(instance, storage)["no_class_vanished"].passed
    make_version(instance, storage, {"train": rows_of(2)}, classes=["roses"], accept_removed=gone)
    assert execute_checks(instance, storage)["no_class_vanished"].passed
    assert checked(storage) == 3


def test_a_re_execution_of_the_check_alone_may_accept_what_is_gone(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    make_version(instance, storage, {"train": rows_of(2, 2)})
    execute_checks(instance, storage)
    make_version(instance, storage, {"train": rows_of(2)}, classes=["daisy"])
    assert not execute_checks(instance, storage)["no_class_vanished"].passed
    assert checked(storage) == 1
    accepted = op_config({"shards": {"accept_removed": ["roses"]}})
    assert execute_checks(instance, storage, "no_class_vanished", run_config=accepted)["no_class_vanished"].passed
    assert checked(storage) == 2


def test_losing_more_rows_than_declared_blocks(instance: dg.DagsterInstance, storage: StorageResource) -> None:
    make_version(instance, storage, {"train": rows_of(10, 10)})
    execute_checks(instance, storage)
    make_version(instance, storage, {"train": rows_of(10, 7)}, max_row_loss=0.1)
    evaluation = execute_checks(instance, storage)["no_class_vanished"]
    assert "3 of 20 rows are gone, at most 10% may go" in str(evaluation.description)
    assert checked(storage) == 1
    make_version(instance, storage, {"train": rows_of(10, 7)}, max_row_loss=0.15)
    execute_checks(instance, storage)
    assert checked(storage) == 3


def test_a_class_that_is_missing_from_a_split_is_a_warning_that_blocks_nothing(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    make_version(instance, storage, {"train": rows_of(2, 2), "validation": rows_of(1)})
    evaluation = execute_checks(instance, storage)["no_class_vanished"]
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.WARN
    assert checked(storage) == 1


BEFORE = {"daisy": 100, "roses": 50, "tulips": 50, "none": 0}


@pytest.mark.parametrize(
    ("now", "accepted", "share", "expected"),
    [
        (BEFORE, [], 0.0, []),
        ({"daisy": 80, "roses": 50, "tulips": 50}, [], 0.1, []),  # 20 of 200 rows
        ({"daisy": 79, "roses": 50, "tulips": 50}, [], 0.1, ["21 of 200 rows are gone, at most 10% may go"]),
        # What one class gains does not hide what another loses.
        ({"daisy": 1, "roses": 200, "tulips": 50}, [], 0.1, ["99 of 200 rows are gone, at most 10% may go"]),
        ({"daisy": 1, "roses": 200, "tulips": 50}, ["rows"], 0.1, []),
        ({"daisy": 100, "roses": 50}, [], 0.5, ["1 of 3 classes are gone (tulips)"]),
        ({"daisy": 100, "roses": 50}, ["rows"], 0.1, ["1 of 3 classes are gone (tulips)"]),
        ({"daisy": 100, "roses": 50}, ["tulips"], 0.1, []),
        ({"daisy": 80, "roses": 50}, ["tulips"], 0.1, ["20 of 150 rows are gone, at most 10% may go"]),
        ({"oaks": 1}, ["*"], 0.0, []),
        ({"oaks": 1}, ["daisy", "roses", "tulips"], 0.0, []),
    ],
)
def test_what_is_gone_is_what_was_there_and_was_not_accepted(
    now: dict[str, int], accepted: list[str], share: float, expected: list[str]
) -> None:
    assert find_losses(BEFORE, now, accepted=accepted, max_row_loss=share) == expected


def test_another_balance_of_the_classes_is_a_warning_by_default_and_blocks_where_it_is_declared(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    make_version(instance, storage, {"train": rows_of(10, 10)})
    execute_checks(instance, storage)
    make_version(instance, storage, {"train": rows_of(10, 30)})
    evaluation = execute_checks(instance, storage)["class_balance_is_kept"]
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.WARN
    assert "25.0% of the images" in str(evaluation.description)
    assert "daisy from 50.0% to 25.0%, roses from 50.0% to 75.0%" in str(evaluation.description)
    assert checked(storage) == 2
    strict = declare(checks=Checks(severity={"class_balance_is_kept": "block"}))
    assert "class_balance_is_kept" in strict.blocking_checks


@pytest.mark.parametrize(
    ("before", "now", "shift"),
    [
        ({"a": 50, "b": 50}, {"a": 5, "b": 5}, 0.0),
        ({"a": 50, "b": 50}, {"a": 30, "b": 10}, 0.25),
        ({"a": 50, "b": 50}, {"a": 50, "b": 50, "new": 100}, 0.0),
        ({"a": 50, "b": 50, "gone": 100}, {"a": 50, "b": 50}, 0.0),
        ({}, {"a": 1}, 0.0),
    ],
)
def test_the_balance_is_that_of_classes_that_both_versions_have(
    before: dict[str, int], now: dict[str, int], shift: float
) -> None:
    assert class_shift(class_shares(before, now)) == pytest.approx(shift)


def test_columns_that_are_gone_or_stored_as_something_else_are_losses() -> None:
    before, now = {"id": "int", "text": "str", "score": "float32"}, {"id": "str", "score": "float32", "new": "int"}
    assert column_losses(before, now, []) == [
        "columns are gone: text (str)",
        "columns are stored as something else: id (int, now str)",
    ]
    assert column_losses(before, now, ["text", "id"]) == column_losses(before, now, ["*"]) == []


# ---------------------------------------------------------------- trainings


class Trainer(TrainerResource):
    """A trainer that only looks at the tags of the set, and may fail."""

    place: str
    fails: bool = False

    def train(self, config: Any, on_event: Any) -> Any:
        _seen.append(tags(self.place))
        if self.fails:
            raise RuntimeError("the training failed")
        last = {"eval_samples": 2, "train_loss": 0.5, "loss": 0.5, "accuracy": 0.5}
        return SimpleNamespace(
            accuracy=0.5, loss=0.5, history=[last], evaluation=last, images_per_second=1.0, data_fraction=0.0,
            seconds=1.0, steps=1, epochs=1, model_dir="model", checkpoint="checkpoint", resumed_from=None,
        )  # fmt: skip


_seen: list[dict[str, int]] = []


@pytest.mark.torch
@pytest.mark.parametrize("fails", [False, True])
def test_a_training_keeps_its_version_by_a_tag_until_it_succeeds(
    instance: dg.DagsterInstance, storage: StorageResource, fails: bool
) -> None:
    make_version(instance, storage, {"train": rows_of(2, 2)})
    _seen.clear()
    trainer = Trainer(run_root="runs", place=storage.url("flowers/shards"), fails=fails)
    done = dg.materialize(
        [MODEL],
        instance=instance,
        resources={"smalti_storage": storage, "smalti_trainer": trainer},
        raise_on_error=False,
    )
    assert done.success is not fails
    assert _seen == [{f"training-{done.run_id}": 1}]
    assert tags(shards(storage)) == ({f"training-{done.run_id}": 1} if fails else {})  # it may be retried


def test_a_training_removes_the_tags_of_those_that_were_killed_and_of_no_others(instance: dg.DagsterInstance) -> None:
    store = versions(1)
    killed, alive, ours = (new_run(instance, "train") for _ in range(3))
    end(instance, killed, dg.DagsterRunStatus.FAILURE)
    kept = {f"training-{alive.run_id}", "training-of-another-instance", "best"}
    for name in (*kept, f"training-{killed.run_id}"):
        tag(store, name, 1)
    context: Any = SimpleNamespace(instance=instance, run=ours, log=dg.get_dagster_logger())
    with kept_for_training(context, store, 1):
        assert set(tags(store)) == {*kept, f"training-{ours.run_id}"}
    assert set(tags(store)) == kept


def test_the_version_of_a_killed_training_stays_protected_until_the_last_of_its_retries_is_over() -> None:
    with instance_in_folder(run_retries={"enabled": True, "max_retries": 1}) as instance:
        store, killed, others = versions(1), new_run(instance, "train"), new_run(instance, "train")
        tag(store, f"training-{killed.run_id}", 1)
        context: Any = SimpleNamespace(instance=instance, run=others, log=dg.get_dagster_logger())

        def is_protected() -> bool:
            release_ended_trainings(context, store)
            return f"training-{killed.run_id}" in tags(store)

        end(instance, killed, dg.DagsterRunStatus.FAILURE)
        assert instance.get_run_by_id(killed.run_id).tags["dagster/will_retry"] == "true"
        assert is_protected()  # it is complete, and waits
        tags_of_retry = {"dagster/root_run_id": killed.run_id, "dagster/parent_run_id": killed.run_id}
        queued = dg.DagsterRunStatus.NOT_STARTED
        retry = new_run(instance, "train", parent=killed, status=queued, tags=tags_of_retry)
        instance.add_run_tags(killed.run_id, {"dagster/auto_retry_run_id": retry.run_id})
        assert is_protected()  # its retry is queued
        end(instance, retry, dg.DagsterRunStatus.FAILURE)
        assert not is_protected()


def test_a_retry_is_awaited_from_the_very_failure_and_no_longer_when_dagster_has_not_started_one() -> None:
    """Dagster writes the tag that says so after the event, and leaves it if the job of the run is gone."""
    with instance_in_folder(run_retries={"enabled": True, "max_retries": 1}) as instance:
        run = new_run(instance, "train")
        end(instance, run, dg.DagsterRunStatus.FAILURE)
        [failed] = instance.get_runs()
        untagged = failed.with_tags({name: value for name, value in failed.tags.items() if "retry" not in name})
        assert awaits_retry(instance, failed)
        assert awaits_retry(instance, untagged)
        assert not awaits_retry(instance, new_run(instance, "train", status=dg.DagsterRunStatus.FAILURE))  # no tag ever
        name = "EVENT_LOG_CONSUMER_CURSOR-PIPELINE_FAILURE"
        instance.daemon_cursor_storage.set_cursor_values({name: "0"})
        assert awaits_retry(instance, failed)
        instance.daemon_cursor_storage.set_cursor_values({name: "1000000"})
        assert not awaits_retry(instance, failed)


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_the_tag_follows_exactly_the_blocking_checks(kind: str) -> None:
    declared = FLOWERS if kind == "images" else declare(source=Source(table="t"), train=None)
    checks = build_shard_checks(declared)
    assert {check.spec.name for check in checks if check.spec.blocking} == set(declared.blocking_checks)
