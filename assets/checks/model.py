"""The check of a trained model: its accuracy on rows that were held out."""

import dagster as dg

from assets.declaration import Declaration
from assets.lineage import upstream


def build_model_checks(declared: Declaration) -> list[dg.AssetChecksDefinition]:
    """Return the checks of a data set's model."""
    least = declared.checks.min_accuracy
    name = "accuracy_is_above_chance" if least is None else "accuracy_is_high_enough"
    expected = "above chance by more than luck explains" if least is None else f"at least {least:.2%}"

    @dg.asset_check(asset=declared.key("model"), name=name, description=f"Held-out accuracy is {expected}.")
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Chance is the share of the largest class; luck is three standard errors of a guess on that many images."""
        facts = upstream(context, declared.key("model"))
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

    return [check]
