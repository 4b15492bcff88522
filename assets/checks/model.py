"""The checks of a trained model: its accuracy on rows that were held out, alone and beside the promoted model's."""

import dagster as dg

from assets.checks.check import Check, CheckInput
from assets.checks.metric import HELD_OUT, about_model, build_metric_checks, held_out_shards
from assets.declaration import Declaration
from assets.places import shards_of
from assets.shard_tags import promoted_model
from smalti.catalog import load_manifest
from smalti.catalog.tags import Tag
from smalti.errors import SmaltiError
from smalti.torch.train.config import IMAGES


def build_model_checks(declared: Declaration) -> list[Check]:
    """Return the checks of a data set's model, of whichever task."""
    if declared.train is not None and declared.train.task != IMAGES:
        return build_metric_checks(declared)
    least = declared.checks.min_accuracy
    name = "accuracy_is_above_chance" if least is None else "accuracy_is_high_enough"
    expected = "above chance by more than luck explains" if least is None else f"at least {least:.2%}"
    spec = dg.AssetCheckSpec(name, asset=declared.key("model"), description=f"Held-out accuracy is {expected}.")
    checks = [Check(spec, _accuracy_is_high_enough)]
    if (most := declared.checks.max_accuracy_drop) is not None:
        text = f"Held-out accuracy is at most {most:.2%} below the promoted model's, on the same images."
        spec = dg.AssetCheckSpec("accuracy_has_not_dropped", asset=declared.key("model"), description=text)
        checks.append(Check(spec, _accuracy_has_not_dropped))
    return checks


def _accuracy_is_high_enough(step: CheckInput) -> dg.AssetCheckResult:
    """Compare with chance, the share of the largest class, and luck, three standard errors of a guess on the images."""
    facts, least = step.facts, step.declared.checks.min_accuracy
    chance, images, accuracy = float(facts["chance"]), int(facts["held_out_images"]), float(facts["accuracy"])
    luck = 3 * (chance * (1 - chance) / max(images, 1)) ** 0.5
    needed = chance + luck if least is None else least
    passed = images > 0 and (accuracy > needed if least is None else accuracy >= needed)
    return dg.AssetCheckResult(
        passed=passed,
        description=None
        if passed
        else f"The accuracy is {accuracy:.3f} on {images} held-out images (chance {chance:.3f}), expected "
        f"{'more than' if least is None else 'at least'} {needed:.3f}: train for more epochs, or with other options.",
        metadata={
            "accuracy": accuracy,
            "chance": chance,
            "needed": round(needed, 4),
            "held_out_images": images,
            **about_model(step),
        },
    )


def _accuracy_has_not_dropped(step: CheckInput) -> dg.AssetCheckResult:
    """Compare the accuracy with that of the promoted model, on the validation images of this model's version.

    The promoted model is evaluated on them, unless its own validation images were the very same. A comparison that is
    not possible is a warning.
    """
    facts, most = step.facts, step.declared.checks.max_accuracy_drop or 0.0
    promoted = promoted_model(shards_of(step.declared, step.storage).store())
    if promoted is None or promoted.metadata.get("run") == facts.get("run"):
        text = "No other model is promoted: there is nothing to compare with."
        return dg.AssetCheckResult(passed=True, description=text, metadata=about_model(step))
    metadata = {"promoted_model_of_run": str(promoted.metadata["run"]), **about_model(step)}
    try:
        before, how = _accuracy_of(promoted, step)
    except (SmaltiError, ValueError, RuntimeError) as error:  # RuntimeError: torch's, of weights that do not fit
        return dg.AssetCheckResult(
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"The promoted model cannot be compared: {error}",
            metadata=metadata,
        )
    accuracy = float(facts["accuracy"])
    drop = round(before - accuracy, 4)
    return dg.AssetCheckResult(
        passed=drop <= most,
        metadata={
            "accuracy": accuracy,
            "accuracy_of_the_promoted_model": round(before, 4),
            "drop": drop,
            "most": most,
            "validation_images": f"those of version {facts['shards_version']}; {how}",
            **metadata,
        },
    )


def _accuracy_of(promoted: Tag, step: CheckInput) -> tuple[float, str]:
    """Return the accuracy of the promoted model on the validation images of a version, and how it is known."""
    if "main_metric" in promoted.metadata or "accuracy" not in promoted.metadata:  # of another task
        task, figure = (promoted.metadata.get(name, "not known") for name in ("task", "main_metric"))
        raise ValueError(f"its task is {task} and its main figure {figure}, expected {IMAGES} and its accuracy")
    place, facts = shards_of(step.declared, step.storage), step.facts
    now = load_manifest(place.store(), version=int(facts["shards_version"]))
    if held_out_shards(now) == held_out_shards(load_manifest(place.store(), version=promoted.version)):
        return float(promoted.metadata["accuracy"]), f"version {promoted.version} has the very same"
    from smalti.torch.train import evaluate_model

    model = str(promoted.metadata["model"])
    found = evaluate_model(
        model,
        place.url,
        version=now.version,
        class_names=now.metadata["classes"],
        split=HELD_OUT,
        model_options=step.storage.options_for(model),
        storage_options=place.storage_options,
    )
    return found.accuracy, f"the promoted model, trained on version {promoted.version}, was evaluated on them"
