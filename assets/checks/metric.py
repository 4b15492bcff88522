"""The checks of a model of any task: its main figure on rows that were held out, alone and beside the promoted model's.

The task says which figure that is, and whether a higher one is better.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from assets.checks.check import Check, CheckInput
from assets.declaration import Declaration
from assets.places import shards_of
from assets.shard_tags import promoted_model
from smalti.catalog import Manifest, load_manifest
from smalti.catalog.tags import Tag
from smalti.errors import SmaltiError
from smalti.torch.train.config import TASKS

HELD_OUT = "validation"
"""The split that models are compared on."""


def build_metric_checks(declared: Declaration) -> list[Check]:
    """Return the checks of the model of a task other than image classification."""
    checks = []
    if (limit := declared.checks.metric_limit) is not None:
        text = f"The held-out main figure is {limit:g} or better."
        spec = dg.AssetCheckSpec("metric_is_good_enough", asset=declared.key("model"), description=text)
        checks.append(Check(spec, _metric_is_good_enough))
    if (most := declared.checks.max_metric_loss) is not None:
        text = f"The main figure is at most {most:.2%} worse than the promoted model's, on the same rows."
        spec = dg.AssetCheckSpec("metric_has_not_worsened", asset=declared.key("model"), description=text)
        checks.append(Check(spec, _metric_has_not_worsened))
    return checks


def _metric_is_good_enough(step: CheckInput) -> dg.AssetCheckResult:
    facts, limit = step.facts, float(step.declared.checks.metric_limit or 0.0)
    value, rows = float(facts["main_value"]), int(facts["held_out_rows"])
    is_good = value >= limit if facts["higher_is_better"] else value <= limit
    return dg.AssetCheckResult(
        passed=rows > 0 and is_good,
        metadata={str(facts["main_metric"]): value, "limit": limit, "held_out_rows": rows, **about_model(step)},
    )


def _metric_has_not_worsened(step: CheckInput) -> dg.AssetCheckResult:
    """Compare the main figure with the promoted model's, on the validation rows of this model's version.

    The promoted model is evaluated on them, unless its own validation rows were the very same. A comparison that is
    not possible is a warning.
    """
    facts, most = step.facts, step.declared.checks.max_metric_loss or 0.0
    promoted = promoted_model(shards_of(step.declared, step.storage).store())
    if promoted is None or promoted.metadata.get("run") == facts.get("run"):
        text = "No other model is promoted: there is nothing to compare with."
        return dg.AssetCheckResult(passed=True, description=text, metadata=about_model(step))
    metadata = {"promoted_model_of_run": str(promoted.metadata["run"]), **about_model(step)}
    try:
        before, how = _value_of(promoted, step)
    except (SmaltiError, ValueError, RuntimeError) as error:  # RuntimeError: torch's, of weights that do not fit
        return dg.AssetCheckResult(
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"The promoted model cannot be compared: {error}",
            metadata=metadata,
        )
    value = float(facts["main_value"])
    return dg.AssetCheckResult(
        passed=worsening(before, value, higher_is_better=bool(facts["higher_is_better"])) <= most,
        metadata={
            str(facts["main_metric"]): value,
            "that_of_the_promoted_model": before,
            "most": most,
            "validation_rows": f"those of version {facts['shards_version']}; {how}",
            **metadata,
        },
    )


def worsening(before: float, now: float, *, higher_is_better: bool) -> float:
    """Return by which share of the figure before one is worse; below 0 if it is better."""
    change = before - now if higher_is_better else now - before
    if before == 0:
        return 0.0 if change <= 0 else float("inf")
    return change / abs(before)


def about_model(step: CheckInput) -> dict[str, Any]:
    """Return which model a result is about: that of the newest run need not be the one that is promoted."""
    return {"model_run": dg.MetadataValue.dagster_run(str(step.facts["run"]))} if "run" in step.facts else {}


def held_out_shards(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Return the classes, if there are any, and the shards of the validation rows: equal for the very same rows."""
    shards = [shard.stored.basename for shard in manifest.shards if shard.partition == HELD_OUT]
    return list(manifest.metadata.get("classes", [])), shards


def require_same_figures(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that the figures of two models are of the same task and data, as far as the facts of both are known.

    Of a shipped task the options count that say what its figures are of. Of a user's, which the library does not know,
    all options count.

    Raises:
        ValueError: they are not; the message names the difference.
    """
    if "task" not in before or "task" not in now:  # made before models said so
        return
    task = str(now["task"])
    if before["task"] != task:
        raise ValueError(f"its task is {before['task']}, and not {task}")
    then, options = dict(before.get("task_options") or {}), dict(now.get("task_options") or {})
    names = TASKS[task].data_options if task in TASKS else sorted(then.keys() | options.keys())
    for name in names:
        if then.get(name) != options.get(name):
            raise ValueError(
                f"its task option `{name}` is {then.get(name)!r}, and not {options.get(name)!r}: promote a model with "
                "the same one to compare with"
            )


def _value_of(promoted: Tag, step: CheckInput) -> tuple[float, str]:
    """Return the main figure of the promoted model on the validation rows of a version, and how it is known."""
    place, facts = shards_of(step.declared, step.storage), step.facts
    figure = str(facts["main_metric"])
    if promoted.metadata.get("main_metric") != figure:
        raise ValueError(f"its main figure is {promoted.metadata.get('main_metric', 'accuracy')}, and not {figure}")
    require_same_figures(promoted.metadata, facts)
    now = load_manifest(place.store(), version=int(facts["shards_version"]))
    if held_out_shards(now) == held_out_shards(load_manifest(place.store(), version=promoted.version)):
        return float(promoted.metadata["main_value"]), f"version {promoted.version} has the very same"
    from smalti.torch.train.trainer.scoring import measure_saved_task

    model = str(promoted.metadata["model"])
    metrics = measure_saved_task(
        model,
        place.url,
        version=now.version,
        split=HELD_OUT,
        model_options=step.storage.options_for(model),
        data_options=place.storage_options,
    )
    return metrics[figure], f"the promoted model, trained on version {promoted.version}, was evaluated on them"
