"""Checks of the version that a materialisation of the shards names: its manifest, and what they said before."""

import dataclasses
from collections import Counter
from collections.abc import Callable

import dagster as dg

from smalti.catalog import Manifest, load_manifest
from smalti.catalog.manifest import Header
from smalti.errors import FormatError, StoreNotFound
from smalti_dagster.checks.check import CheckInput
from smalti_dagster.checks.sums import SetSums, class_counts, load_sums, save_sums, sums_of_shards
from smalti_dagster.lineage import (
    CHECKED_IN,
    CONTENT,
    Passes,
    content_digest,
    entered_config,
    evaluations,
    passes_of,
)
from smalti_dagster.places import Place, place_of, shards_of
from smalti_dagster.shard_tags import BASE, CHECKED, checked_version, conclude


@dataclasses.dataclass(frozen=True)
class VersionInput:
    """The input of a check of a version."""

    step: CheckInput
    place: Place
    manifest: Manifest
    """The version that was materialised: a newer one may have been published since."""

    @property
    def passes(self) -> Passes:
        """The times that the check passed before; none if a person executes it, because it is then made again."""
        return Passes(()) if self.step.is_alone else passes_of(self.step.instance, self.step.key)

    def sums(self) -> SetSums:
        """Return the sums of the version, and keep those of its shards; a check that a person executes reads all."""
        kept = place_of(self.step.declared, self.step.storage, "checks").store()
        sums = sums_of_shards(self.place.store(), self.manifest, {} if self.step.is_alone else load_sums(kept))
        if sums.read:
            save_sums(kept, sums)
        return sums


def of_version(
    evaluate: Callable[[VersionInput], dg.AssetCheckResult],
) -> Callable[[CheckInput], dg.AssetCheckResult]:
    """Return a check of what was materialised, which moves the tag `checked` if it is the last one that has to pass.

    A version whose files are damaged or gone fails the check. Other faults of a store are raised, so that the step can
    be tried again.
    """

    def check(step: CheckInput) -> dg.AssetCheckResult:
        place = shards_of(step.declared, step.storage)
        given = VersionInput(step, place, step.once(_load_version))
        try:
            result = evaluate(given)
        except (FormatError, StoreNotFound) as error:
            result = dg.AssetCheckResult(passed=False, description=f"{type(error).__name__}: {error}")
        return conclude(step, place, given.manifest, result)

    return check


def _load_version(step: CheckInput) -> Manifest:
    """Return the version that was materialised."""
    return load_manifest(shards_of(step.declared, step.storage).store(), version=int(step.facts["version"]))


def known(run: str, content: str, **metadata: int | str) -> dg.AssetCheckResult:
    """Return the result for a content that passed before; `hashes_verify` reads whether its bytes are the same."""
    return dg.AssetCheckResult(
        passed=True,
        description="This very content passed before.",
        metadata={CONTENT: content_digest(content), **metadata, CHECKED_IN: dg.MetadataValue.dagster_run(run)},
    )


def said_before(step: CheckInput, content: str) -> dg.AssetCheckResult | None:
    """Return what the check said of the same content, whether it passed or not; None if it is to be made again."""
    if step.is_alone:
        return None
    for run, said in evaluations(step.instance, step.key):
        facts = {name: value.value for name, value in said.metadata.items()}
        if facts.get(CONTENT) == content_digest(content):
            where = dg.MetadataValue.dagster_run(str(facts.get(CHECKED_IN, run)))
            return dg.AssetCheckResult(
                passed=said.passed,
                description=said.description,
                metadata={CONTENT: content_digest(content), CHECKED_IN: where},
            )
    return None


def base_of(given: VersionInput) -> Header | None:
    """Return the newest version whose blocking checks passed, if it came before this one."""
    base = checked_version(given.place.store())
    return base if base is not None and base.version < given.manifest.version else None


def base_facts(base: Header | None) -> dict[str, int]:
    """Return the number of the version that a check compares with, for the metadata: 0 for none."""
    return {BASE: base.version if base is not None else 0}


def since(base: Header | None) -> str:
    """Return in words the version that is compared with."""
    if base is None:
        return f"nothing: no earlier version is {CHECKED!r}"
    return f"version {base.version}, the newest whose blocking checks passed"


def counts_of(checked: Header | Manifest, place: Place) -> dict[str, int]:
    """Return how many rows of each class a version has, as it says itself; its checks have confirmed that."""
    counts: Counter[str] = Counter()
    for split in (checked.metadata.get("counts") or {}).values():
        counts.update(split)
    if counts:
        return dict(counts)
    store = place.store()
    sums = sums_of_shards(store, load_manifest(store, version=checked.version))
    return class_counts(sums.splits, checked.metadata["classes"])


def accepted_by(step: CheckInput) -> set[str]:
    """Return what the run accepts as gone; a re-execution of a check alone may accept more than that."""
    entered = entered_config(step.run, step.declared, "shards")
    return {*step.facts.get("accept_removed", []), *entered.get("accept_removed", [])}


def how_to_accept(step: CheckInput, names: str) -> str:
    """Return what a person does about something that is gone."""
    job, shards = f"{step.declared.name}_reshard_job", step.key.asset_key.to_user_string()
    where = f"below `shards` in the configuration of {step.op}" if step.op else f"in the metadata of {shards}"
    return (
        f"The tag {CHECKED!r} stays where it is. If that is a mistake, put the data back and run {job} again; if it is "
        f"meant, run that with `accept_removed` {where}: {names}."
    )
