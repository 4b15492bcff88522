"""Tags on versions of the shard set: `checked`, `promoted`, and one for each training that is under way.

`checked` names the newest version whose blocking checks passed. Every blocking check moves it when it passes as the
last of them, in the run that wrote the version or in any later run that executes the check again. It never moves back,
and never past a version that the checks have not compared the new one with. Where a project has blocking checks of its
own, the tag waits for these, too: a tick of the data set's sensors moves it when they have passed (`settle`).

A training tags its version until it succeeds, so that no vacuum removes it. One that failed, was cancelled or killed
leaves its tag, so that a retry, even one that is still queued, finds the version. The next training, or the next run
that publishes, removes the tags of runs that are over and are not about to be executed again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

from smalti.catalog import Manifest, tag, tags, untag
from smalti.catalog.manifest import Header, read_header
from smalti.catalog.opening import Tag, read_tag, tag_key
from smalti.catalog.tags import tag_bytes
from smalti.errors import CommitConflict, SmaltiError, StoreError, StoreNotFound, VersionNotFound
from smalti.storage import Store
from smalti_dagster.checks.check import CheckInput, missing_of
from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.checks import checks_before_shards
from smalti_dagster.lineage import evaluations, facts_of, latest
from smalti_dagster.places import Place, shards_of
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.runs.steps import is_going_on
from smalti_dagster.stage import Facts, plain

CHECKED = "checked"
"""The tag of the newest version whose blocking checks passed."""

PROMOTED = "promoted"
"""The tag of the version whose model is in use."""

BASE = "compared_with_version"
"""In the metadata of checks that compare a version with the one before: the number that `checked` named, 0 for none."""

_TRAINING = "training-"  # and the run's id
_MOVES = 5  # attempts to move the tag while others do, too


def checked_version(store: Store) -> Header | None:
    """Return the newest version whose blocking checks passed; None if there is none.

    Raises:
        StoreError: the store failed.
    """
    try:
        number = read_tag(store, CHECKED).version
    except (StoreNotFound, VersionNotFound):
        return None
    return read_header(store, number)


def promoted_model(store: Store) -> Tag | None:
    """Return the tag of the promoted model; None if none was promoted."""
    return _tag_of(store, PROMOTED)


def _tag_of(store: Store, name: str) -> Tag | None:
    try:
        return read_tag(store, name)
    except (StoreNotFound, VersionNotFound):
        return None


def conclude(step: CheckInput, place: Place, manifest: Manifest, result: dg.AssetCheckResult) -> dg.AssetCheckResult:
    """Return the result of a check of a version; of a blocking one, move `checked` if no other one is missing."""
    about: dict[str, Any] = {"version": manifest.version, "digest": manifest.digest, "set": place.url}
    state = {}
    if step.key.name in step.declared.blocking_checks:
        state = {f"tag_{CHECKED}": _move(step, place.store(), about, result)}
    return dg.AssetCheckResult(
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata={**result.metadata, **about, **state},
    )


def settle(
    instance: dg.DagsterInstance, declared: Declaration, storage: StorageResource, own: Sequence[dg.AssetCheckKey]
) -> None:
    """Move `checked` to the newest version if checks of the project's own were the last that it waited for."""
    event = latest(instance, declared.key("shards")) if own else None
    if event is None:
        return
    facts, place = facts_of(event), shards_of(declared, storage)
    about = {"version": facts.get("version"), "digest": facts.get("digest"), "set": place.url}
    checked = checked_version(place.store())
    if checked is None or about["version"] != checked.version:
        _advance(instance, declared, place.store(), facts, about, {}, own)


def _move(step: CheckInput, store: Store, about: Mapping[str, Any], result: dg.AssetCheckResult) -> str:
    """Move `checked` to a version if all its blocking checks have passed; return in words what was done."""
    if not _lets_pass(result):
        return f"not moved: {step.key.name} failed"
    said = {step.key.name: plain(result.metadata)}
    return _advance(step.instance, step.declared, store, step.facts, about, said, step.own)


def _advance(
    instance: dg.DagsterInstance,
    declared: Declaration,
    store: Store,
    facts: Facts,
    about: Mapping[str, Any],
    said: Mapping[str, Facts],
    own: Sequence[dg.AssetCheckKey],
) -> str:
    """Move `checked` to a version if all its blocking checks have passed; return in words what was done.

    Args:
        instance: Knows what the checks said.
        declared: The data set.
        store: Of the shard set.
        facts: Of the materialisation of the version.
        about: Version, digest and set, as they are in the metadata of its checks.
        said: The metadata of checks that have passed just now, by name.
        own: Blocking checks of the project's own.
    """
    version, passed = int(about["version"]), dict(said)
    for name in declared.blocking_checks:
        found = _said(instance, dg.AssetCheckKey(declared.key("shards"), name), about) if name not in passed else None
        if found is not None and _lets_pass(found):
            passed[name] = plain(found.metadata)
    missing = [name for name in declared.blocking_checks if name not in passed]
    if missing := missing or missing_of(instance, own):
        return f"not moved before {' and '.join(missing)} passed for version {version}"
    if (failed := _failed_before(instance, declared, facts)) is not None:
        return f"not moved: {failed} failed for the rows of version {version}"
    bases = {name: each[BASE] for name, each in passed.items() if BASE in each}
    named = advance(store, version, bases=bases.values())
    if named >= version:
        return f"version {named}"
    stale = [name for name, base in bases.items() if base != named]
    return f"not moved: it names version {named} by now; {' and '.join(stale)} has to be executed again"


def _lets_pass(said: dg.AssetCheckResult | dg.AssetCheckEvaluation) -> bool:
    """Return whether a blocking check lets Dagster continue: a warning does."""
    return said.passed or said.severity is dg.AssetCheckSeverity.WARN


def _said(
    instance: dg.DagsterInstance, check: dg.AssetCheckKey, about: Mapping[str, Any]
) -> dg.AssetCheckEvaluation | None:
    """Return the last evaluation of a check that has these facts in its metadata."""
    for _, said in evaluations(instance, check):
        if all(name in said.metadata and said.metadata[name].value == value for name, value in about.items()):
            return said
    return None


def _failed_before(instance: dg.DagsterInstance, declared: Declaration, facts: Facts) -> str | None:
    """Return the blocking check that the rows of a version have failed, where the stages ran one by one.

    Which rows a check was of is known of prepared images alone. For others, its last evaluation counts.
    """
    for stage in declared.stages[: declared.stages.index("shards")]:
        is_known = stage == "prepared" and "table" in facts
        about = {"digest": facts["table"]} if is_known else {}
        for name in checks_before_shards(declared.source.kind, declared.checks.severity):
            said = _said(instance, dg.AssetCheckKey(declared.key(stage), name), about)
            if said is not None and not _lets_pass(said):
                return name
    return None


def advance(store: Store, version: int, *, bases: Collection[int] = ()) -> int:
    """Move `checked` to a version unless it names a newer one; return the number of the one that it names then.

    Args:
        store: of the set.
        version: whose blocking checks have passed.
        bases: the versions, 0 for none, that it was compared with. If `checked` names another one by now, it stays.

    Raises:
        CommitConflict: others move the tag all the time.
    """
    for _ in range(_MOVES):
        checked = _tag_of(store, CHECKED)
        named = checked.version if checked is not None else 0
        if named >= version or any(base != named for base in bases):
            return named
        try:
            return move_tag(store, CHECKED, version, move=checked or Tag(CHECKED, 0))
        except CommitConflict:
            continue
    raise CommitConflict(f"{store.url}: others moved the tag {CHECKED!r} {_MOVES} times: execute the check again")


def move_tag(
    store: Store, name: str, version: int, *, move: bool | Tag = True, metadata: Mapping[str, Any] | None = None
) -> int:
    """Move a tag as `smalti.catalog.tag` does, also in a store that cannot replace an object conditionally.

    There, of two processes that move the tag at once, the last one wins.
    """
    try:
        return tag(store, name, version, move=move, metadata=metadata)
    except StoreError as error:
        if not error.facts.get("is_unsupported"):
            raise
    store.put(tag_key(name), tag_bytes(name, version, metadata))
    return version


@contextmanager
def kept_for_training(context: dg.AssetExecutionContext, store: Store, version: int) -> Iterator[None]:
    """Keep a version from every vacuum while the block runs, and release those of trainings that are over.

    If the block raises, the version stays protected: the run may be retried.

    Raises:
        VersionNotFound: a vacuum has removed it.
    """
    name, release = f"{_TRAINING}{context.run.run_id}", release_ended_trainings
    tag(store, name, version, move=True)
    release(context, store)
    yield
    try:
        untag(store, name)
    except SmaltiError as error:  # the training's own outcome counts; a later run removes the tag
        context.log.warning("the tag %s was not removed: %s", name, error)
    release(context, store, besides=context.run.run_id)


def release_ended_trainings(context: dg.AssetExecutionContext, store: Store, *, besides: str = "") -> None:
    """Remove the tags of trainings that are over; those of runs that are not known here stay.

    A run is over if neither itself nor one that executes it again has to end yet, or is about to be retried. `besides`
    is a run that does not count as active. Best effort: a failure is logged, and a later run tries again.
    """
    try:
        for name in tags(store):
            run_id = name.removeprefix(_TRAINING)
            run = context.instance.get_run_by_id(run_id) if run_id != name else None
            if run is not None and not is_going_on(context.instance, run, besides=besides):
                untag(store, name)
                context.log.info("removed the tag %s: that run ended as %s", name, run.status.value)
    except SmaltiError as error:
        context.log.warning("not all tags of ended trainings were removed: %s", error)
