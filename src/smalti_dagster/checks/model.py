"""The checks of a trained model: its accuracy on rows that were held out, alone and beside the promoted model's."""

from typing import Any

import dagster as dg

from smalti.torch.train.config import IMAGES
from smalti_dagster.checks.check import CheckInput, DataCheck
from smalti_dagster.checks.metric import ComparedFigure, about_model, build_metric_checks
from smalti_dagster.declaration import Declaration
from smalti_dagster.stage import Facts


def build_model_checks(declared: Declaration) -> list[DataCheck]:
    """Return the checks of a data set's model, of whichever task."""
    if declared.train is not None and declared.train.task != IMAGES:
        return build_metric_checks(declared)
    least = declared.checks.min_accuracy
    name = "accuracy_is_above_chance" if least is None else "accuracy_is_high_enough"
    expected = "above chance by more than luck explains" if least is None else f"at least {least:.2%}"
    spec = dg.AssetCheckSpec(name, asset=declared.key("model"), description=f"Held-out accuracy is {expected}.")
    checks = [DataCheck(spec, _accuracy_is_high_enough)]
    if (most := declared.checks.max_accuracy_drop) is not None:
        text = f"Held-out accuracy is at most {most:.2%} below the promoted model's, on the same images."
        spec = dg.AssetCheckSpec("accuracy_has_not_dropped", asset=declared.key("model"), description=text)
        checks.append(DataCheck(spec, _ACCURACY.compare))
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


def _recorded(promoted: Facts, facts: Facts) -> float:  # noqa: ARG001 - accuracies are all of one kind
    if "main_metric" in promoted or "accuracy" not in promoted:  # of another task
        task, figure = (promoted.get(name, "not known") for name in ("task", "main_metric"))
        raise ValueError(f"its task is {task} and its main figure {figure}, expected {IMAGES} and its accuracy")
    return float(promoted["accuracy"])


def _judged(before: float, step: CheckInput) -> tuple[bool, dict[str, Any]]:
    most, accuracy = step.declared.checks.max_accuracy_drop or 0.0, float(step.facts["accuracy"])
    drop = round(before - accuracy, 4)
    numbers = {"accuracy": accuracy, "accuracy_of_the_promoted_model": round(before, 4), "drop": drop, "most": most}
    return drop <= most, numbers


_ACCURACY = ComparedFigure("images", _recorded, _judged)
