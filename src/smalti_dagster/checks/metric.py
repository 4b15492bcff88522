"""The checks of a model of any task: its main figure on rows that were held out, alone and beside the promoted model's.

The task says which figure that is, and whether a higher one is better.

Also here: the comparison of a model with the promoted one, by a figure of both on the same held-out samples.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import dagster as dg

from smalti.catalog import Manifest, load_manifest
from smalti.catalog.opening import Tag
from smalti.errors import SchemaError, SmaltiError
from smalti.torch.train.config import find_named
from smalti_dagster.checks.check import CheckInput, DataCheck
from smalti_dagster.declaration import Declaration
from smalti_dagster.places import shards_of
from smalti_dagster.shard_tags import promoted_model
from smalti_dagster.stage import Facts

HELD_OUT = "validation"
"""The split that models are compared on."""


@dataclass(frozen=True)
class ComparedFigure:
    """The figure of a model that is compared with the promoted model's."""

    samples: Literal["images", "rows"]
    recorded: Callable[[Facts, Facts], float]
    """Returns the figure that the metadata of the promoted model have, given those of the newer one too; raises a
    ValueError if the two cannot be compared."""
    judged: Callable[[float, CheckInput], tuple[bool, Mapping[str, Any]]]
    """Returns whether the model is good enough beside this figure of the promoted one, with the numbers that say so."""

    def compare(self, step: CheckInput) -> dg.AssetCheckResult:
        """Compare with the promoted model on the held-out samples of this model's version.

        The promoted model is evaluated on them, unless its own held-out samples were the very same. A comparison that
        is not possible is a warning.
        """
        facts = step.facts
        promoted = promoted_model(shards_of(step.declared, step.storage).store())
        if promoted is None or promoted.metadata.get("run") == facts.get("run"):
            text = "No other model is promoted: there is nothing to compare with."
            return dg.AssetCheckResult(passed=True, description=text, metadata=about_model(step))
        metadata = {"promoted_model_of_run": str(promoted.metadata["run"]), **about_model(step)}
        try:
            before, how = self._of(promoted, step)
        except (SmaltiError, ValueError, RuntimeError) as error:  # RuntimeError: torch's, of weights that do not fit
            return dg.AssetCheckResult(
                passed=False,
                severity=dg.AssetCheckSeverity.WARN,
                description=f"The promoted model cannot be compared: {error}",
                metadata=metadata,
            )
        passed, numbers = self.judged(before, step)
        basis = {f"{HELD_OUT}_{self.samples}": f"those of version {facts['shards_version']}; {how}"}
        return dg.AssetCheckResult(passed=passed, metadata={**numbers, **basis, **metadata})

    def _of(self, promoted: Tag, step: CheckInput) -> tuple[float, str]:
        """Return the figure of the promoted model, and how it is known."""
        place, facts = shards_of(step.declared, step.storage), step.facts
        recorded = self.recorded(promoted.metadata, facts)
        now = load_manifest(place.store(), version=int(facts["shards_version"]))
        if held_out_shards(now) == held_out_shards(load_manifest(place.store(), version=promoted.version)):
            return recorded, f"version {promoted.version} has the very same"
        from smalti.torch.train import evaluate_model

        model = str(promoted.metadata["model"])
        evaluation = evaluate_model(
            model,
            place.url,
            version=now.version,
            split=HELD_OUT,
            model_options=step.storage.options_for(model),
            storage_options=place.storage_options,
        )
        measured = evaluation.metrics[str(facts.get("main_metric", "accuracy"))]
        return measured, f"the promoted model, trained on version {promoted.version}, was evaluated on them"


def about_model(step: CheckInput) -> dict[str, Any]:
    """Return which model a result is about: that of the newest run need not be the one that is promoted."""
    return {"model_run": dg.MetadataValue.dagster_run(str(step.facts["run"]))} if "run" in step.facts else {}


def held_out_shards(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Return the classes, if there are any, and the shards of the validation rows: equal for the very same rows."""
    shards = [shard.stored.basename for shard in manifest.shards if shard.partition == HELD_OUT]
    return list(manifest.metadata.get("classes", [])), shards


def build_metric_checks(declared: Declaration) -> list[DataCheck]:
    """Return the checks of the model of a task other than image classification."""
    checks = []
    if (limit := declared.checks.metric_limit) is not None:
        text = f"The held-out main figure is {limit:g} or better."
        spec = dg.AssetCheckSpec("metric_is_good_enough", asset=declared.key("model"), description=text)
        checks.append(DataCheck(spec, _metric_is_good_enough))
    if (most := declared.checks.max_metric_loss) is not None:
        text = f"The main figure is at most {most:.2%} worse than the promoted model's, on the same rows."
        spec = dg.AssetCheckSpec("metric_has_not_worsened", asset=declared.key("model"), description=text)
        checks.append(DataCheck(spec, _MAIN_FIGURE.compare))
    return checks


def _metric_is_good_enough(step: CheckInput) -> dg.AssetCheckResult:
    facts, limit = step.facts, float(step.declared.checks.metric_limit or 0.0)
    value, rows = float(facts["main_value"]), int(facts["held_out_rows"])
    is_good = value >= limit if facts["higher_is_better"] else value <= limit
    return dg.AssetCheckResult(
        passed=rows > 0 and is_good,
        metadata={str(facts["main_metric"]): value, "limit": limit, "held_out_rows": rows, **about_model(step)},
    )


def worsening(before: float, now: float, *, higher_is_better: bool) -> float:
    """Return by which share of the figure before one is worse; below 0 if it is better."""
    change = before - now if higher_is_better else now - before
    if before == 0:
        return 0.0 if change <= 0 else float("inf")
    return change / abs(before)


def require_same_figures(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that the figures of two models are of the same task and data, as far as the facts of both are known.

    Of the options of a task its `data_options` count; all, if it does not say which matter or cannot be imported.

    Raises:
        ValueError: they are not; the message names the difference.
    """
    if "task" not in before or "task" not in now:  # made before models said so
        return
    task = str(now["task"])
    if before["task"] != task:
        raise ValueError(f"its task is {before['task']}, and not {task}")
    then, options = dict(before.get("task_options") or {}), dict(now.get("task_options") or {})
    names = None
    with contextlib.suppress(SchemaError):
        names = getattr(find_named(task, field="task"), "data_options", None)
    for name in sorted(then.keys() | options.keys()) if names is None else names:
        if then.get(name) != options.get(name):
            raise ValueError(
                f"its task option `{name}` is {then.get(name)!r}, and not {options.get(name)!r}: promote a model with "
                "the same one to compare with"
            )


def _recorded(promoted: Facts, facts: Facts) -> float:
    figure = str(facts["main_metric"])
    if promoted.get("main_metric") != figure:
        raise ValueError(f"its main figure is {promoted.get('main_metric', 'accuracy')}, and not {figure}")
    require_same_figures(promoted, facts)
    return float(promoted["main_value"])


def _judged(before: float, step: CheckInput) -> tuple[bool, dict[str, Any]]:
    facts, most = step.facts, step.declared.checks.max_metric_loss or 0.0
    value = float(facts["main_value"])
    passed = worsening(before, value, higher_is_better=bool(facts["higher_is_better"])) <= most
    return passed, {str(facts["main_metric"]): value, "that_of_the_promoted_model": before, "most": most}


_MAIN_FIGURE = ComparedFigure("rows", _recorded, _judged)
