"""The check of a trained model: its accuracy on rows that were held out."""

import dagster as dg

from assets.checks.check import Check, CheckInput
from assets.declaration import Declaration


def build_model_checks(declared: Declaration) -> list[Check]:
    """Return the checks of a data set's model."""
    least = declared.checks.min_accuracy
    name = "accuracy_is_above_chance" if least is None else "accuracy_is_high_enough"
    expected = "above chance by more than luck explains" if least is None else f"at least {least:.2%}"
    spec = dg.AssetCheckSpec(name, asset=declared.key("model"), description=f"Held-out accuracy is {expected}.")
    return [Check(spec, _accuracy_is_high_enough)]


def _accuracy_is_high_enough(step: CheckInput) -> dg.AssetCheckResult:
    """Compare with chance, the share of the largest class, and luck, three standard errors of a guess on the images."""
    facts, least = step.facts, step.declared.checks.min_accuracy
    chance, images, accuracy = float(facts["chance"]), int(facts["held_out_images"]), float(facts["accuracy"])
    luck = 3 * (chance * (1 - chance) / max(images, 1)) ** 0.5
    return dg.AssetCheckResult(
        passed=images > 0 and (accuracy > chance + luck if least is None else accuracy >= least),
        metadata={
            "accuracy": accuracy,
            "chance": chance,
            "needed": round(chance + luck if least is None else least, 4),
            "held-out images": images,
        },
    )
