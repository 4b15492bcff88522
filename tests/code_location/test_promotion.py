"""Promotion of a model with its version, and the comparison of a new model with the promoted one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from smalti.catalog import Manifest, tags, vacuum
from smalti.cli import main
from smalti.errors import CommitConflict, StoreError
from smalti_dagster.checks.check import CheckInput
from smalti_dagster.checks.model import build_model_checks
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.models.promotion import BEFORE, FORMER, build_promotion
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.shard_tags import PROMOTED, move_tag, promoted_model
from tests.code_location.declared import FLOWERS
from tests.code_location.events import end, materialise, new_run
from tests.code_location.shard_sets import make_version, publish_rows, rows_of, shards
from tests.stores import MemoryStore

ABOVE, DROP = "accuracy_is_above_chance", "accuracy_has_not_dropped"
PROMOTION = build_promotion(FLOWERS)


class Models:
    """Versions, and models that were trained on them, as the assets record them."""

    def __init__(self, instance: dg.DagsterInstance, storage: StorageResource, folder: Path) -> None:
        self.instance, self.storage, self.folder = instance, storage, folder
        self.versions: list[Manifest] = []

    def publish(self, rows: int) -> Manifest:
        splits = {"train": rows_of(rows, rows), "validation": rows_of(1, 1)}
        self.versions.append(make_version(self.instance, self.storage, splits))
        return self.versions[-1]

    def train(self, accuracy: float, *, passed: bool = True, checked: bool = True) -> str:
        """Record a training on the newest version, with its checks; return its run."""
        run, made = new_run(self.instance, "train"), self.versions[-1]
        model = self.folder / run.run_id / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        materialise(self.instance, "model", facts_of_model(run.run_id, made, str(model), accuracy), run)
        for name in (ABOVE, DROP) if checked else ():
            said = dg.AssetCheckEvaluation(
                asset_key=FLOWERS.key("model"), check_name=name, passed=passed or name != ABOVE, metadata={},
                target_materialization_data=None, severity=dg.AssetCheckSeverity.ERROR, description=None,
                blocking=False,
            )  # fmt: skip
            kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION.value
            self.instance.report_dagster_event(
                dg.DagsterEvent(kind, run.job_name, event_specific_data=said), run.run_id
            )
        end(self.instance, run, dg.DagsterRunStatus.SUCCESS)
        return run.run_id

    def promote(self, run: str = "", *, expect: bool = True) -> Any:
        done = dg.materialize(
            [PROMOTION],
            instance=self.instance,
            resources={"smalti_storage": self.storage},
            run_config={"ops": {"flowers__promoted": {"config": {"run": run}}}},
            raise_on_error=False,
        )
        assert done.success is expect
        return done

    @property
    def promoted(self) -> tuple[int, str] | None:
        found = promoted_model(shards(self.storage))
        return (found.version, str(found.metadata["run"])) if found is not None else None

    def shown(self) -> dict[str, Any]:
        event = latest(self.instance, dg.AssetKey(["flowers", "promoted"]))
        assert event is not None
        return facts_of(event)


def facts_of_model(run: str, made: Manifest, model: str, accuracy: float) -> Mapping[str, Any]:
    return {
        "run": run, "accuracy": accuracy, "loss": 0.5, "chance": 0.5, "held_out_images": 2, "model": model,
        "source": "photos", "shards_version": made.version, "shards_digest": made.digest,
    }  # fmt: skip


@pytest.fixture
def models(instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path) -> Models:
    made = Models(instance, storage, tmp_path / "data" / "runs")
    made.publish(2)
    return made


def error_of(done: Any) -> str:
    [failed] = [each for each in done.all_events if each.is_step_failure]
    return str(failed.step_failure_data.user_failure_data.description)


def test_the_newest_model_whose_checks_passed_is_promoted_with_its_version(models: Models) -> None:
    good = models.train(0.9)
    models.publish(3)
    models.train(0.2, passed=False)
    models.train(0.95, checked=False)
    models.promote()
    assert models.promoted == (1, good)
    assert tags(shards(models.storage)) == {PROMOTED: 1}
    shown = models.shown()
    promoted = {row.data[""]: row.data["promoted"] for row in shown["lineage"].records}
    assert {name: promoted[name] for name in ("source", "version", "run")} == {
        "source": "photos", "version": "1", "run": good[:8],
    }  # fmt: skip
    assert promoted["model"].endswith(f"{good}/model")


def test_a_person_may_promote_the_model_of_a_run_whose_checks_failed_and_it_is_shown(models: Models) -> None:
    bad = models.train(0.2, passed=False)
    assert "its only model has not passed all checks" in error_of(models.promote(expect=False))
    models.promote(bad)
    assert models.promoted == (1, bad)
    assert models.shown()["checks_that_have_not_passed"] == ABOVE


def test_promoting_the_former_model_undoes_a_promotion_and_both_versions_survive_a_vacuum(models: Models) -> None:
    first = models.train(0.9)
    models.promote()
    assert "no model was promoted before" in error_of(models.promote(FORMER, expect=False))
    models.publish(3)
    second = models.train(0.95)
    models.promote()
    models.publish(4)
    models.publish(5)
    assert models.promoted == (2, second)
    assert tags(shards(models.storage)) == {PROMOTED: 2, BEFORE: 1}
    swept = vacuum(shards(models.storage), older_than="0s", unsafe_ttl=True, dry_run=False)
    assert swept.expired == (3,)
    models.promote(FORMER)
    assert models.promoted == (1, first)
    models.promote(FORMER)  # and once more: the undoing is undone
    assert models.promoted == (2, second)


def test_promoting_what_is_promoted_changes_nothing(models: Models) -> None:
    """An op that is retried after its commit (fault J6)."""
    models.train(0.9)
    models.promote()
    before = promoted_model(shards(models.storage))
    models.promote()
    assert promoted_model(shards(models.storage)) == before


def test_a_model_or_a_version_that_is_gone_is_not_promoted(models: Models) -> None:
    run = models.train(0.9)
    path = models.folder / run / "model" / "config.json"
    path.unlink()
    assert "is gone from" in error_of(models.promote(run, expect=False))
    path.write_text("{}")
    for rows in (3, 4):
        models.publish(rows)
    vacuum(shards(models.storage), older_than="0s", unsafe_ttl=True, dry_run=False)
    assert "version 1" in error_of(models.promote(run, expect=False))
    assert "has made no flowers/model" in error_of(models.promote("unknown", expect=False))
    assert models.promoted is None


def test_of_two_promotions_at_once_one_fails() -> None:
    store = MemoryStore()
    for _ in range(3):
        publish_rows(store, {"train": rows_of(1)})
    move_tag(store, PROMOTED, 1, move=False, metadata={"run": "a"})
    read = promoted_model(store)
    assert read is not None
    move_tag(store, PROMOTED, 2, move=read, metadata={"run": "b"})
    with pytest.raises(CommitConflict, match="another process moved this tag"):
        move_tag(store, PROMOTED, 3, move=read, metadata={"run": "c"})
    assert promoted_model(store).metadata == {"run": "b"}  # type: ignore[union-attr]
    store.plant("put_if_match", error=StoreError("no conditional puts", is_unsupported=True))
    assert move_tag(store, PROMOTED, 3, move=True, metadata={"run": "c"}) == 3


def test_the_command_line_shows_the_promoted_model(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    run = models.train(0.9)
    models.promote()
    assert main(["tags", models.storage.url("flowers/shards")]) == 0
    shown = capsys.readouterr().out
    assert "promoted: version 1\n" in shown
    assert f"    run: {run}\n" in shown
    assert "    source: photos\n" in shown


# ---------------------------------------------------------------- beside the promoted model


def compare(models: Models, run: str) -> dg.AssetCheckResult:
    """The check of the model of a run."""
    [check] = [each for each in build_model_checks(FLOWERS) if each.spec.name == DROP]
    event = next(each for each in [latest(models.instance, FLOWERS.key("model"))] if each is not None)
    assert event.run_id == run
    found: Any = models.instance.get_run_by_id(run)
    return check.evaluate(CheckInput(FLOWERS, models.storage, models.instance, found, check.spec.key, facts_of(event)))


@pytest.mark.parametrize(("accuracy", "passes"), [(0.95, True), (0.88, True), (0.87, False)])
def test_a_model_may_be_a_declared_share_below_the_promoted_one(models: Models, accuracy: float, passes: bool) -> None:
    first = models.train(0.9)
    assert compare(models, first).passed
    models.promote()
    result = compare(models, models.train(accuracy))
    assert result.passed is passes
    assert result.metadata["accuracy_of_the_promoted_model"].value == 0.9
    assert "version 1 has the very same" in str(result.metadata["validation_images"].value)


def test_a_promoted_model_that_cannot_be_evaluated_is_a_warning_and_does_not_fail_the_training(models: Models) -> None:
    models.train(0.9)
    models.promote()
    models.publish(3)  # other validation images
    result = compare(models, models.train(0.9))
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "cannot be compared" in str(result.description)


def test_a_promoted_model_of_another_task_is_a_warning(models: Models) -> None:
    move_tag(
        shards(models.storage), PROMOTED, 1, move=False,
        metadata={"run": "other", "model": "m", "task": "m:Language", "main_metric": "perplexity"},
    )  # fmt: skip
    result = compare(models, models.train(0.9))
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "its task is m:Language and its main figure perplexity" in str(result.description)
