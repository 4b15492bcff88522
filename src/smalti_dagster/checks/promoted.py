"""Comparison of a model with the promoted one, by a figure of both on the same held-out samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import dagster as dg

from smalti.catalog import Manifest, load_manifest
from smalti.catalog.opening import Tag
from smalti.errors import SmaltiError
from smalti_dagster.checks.check import CheckInput
from smalti_dagster.places import Place, shards_of
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
    measured: Callable[[Place, Place, Manifest, Facts], float]
    """Evaluates the model at a place on the held-out samples of a version of the shard set at another; the facts are
    those of the newer model."""
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
        model = str(promoted.metadata["model"])
        measured = self.measured(Place(model, step.storage.options_for(model)), place, now, facts)
        return measured, f"the promoted model, trained on version {promoted.version}, was evaluated on them"


def about_model(step: CheckInput) -> dict[str, Any]:
    """Return which model a result is about: that of the newest run need not be the one that is promoted."""
    return {"model_run": dg.MetadataValue.dagster_run(str(step.facts["run"]))} if "run" in step.facts else {}


def held_out_shards(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Return the classes, if there are any, and the shards of the validation rows: equal for the very same rows."""
    shards = [shard.stored.basename for shard in manifest.shards if shard.partition == HELD_OUT]
    return list(manifest.metadata.get("classes", [])), shards
