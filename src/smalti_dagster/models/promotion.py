"""Promotion: the tag `promoted` of a version of the shard set, which carries the model that was trained on it.

Version and model are one object in the store, replaced by a conditional put: no reader sees one without the other, and
of two promotions at once one fails. The tag keeps the version from every vacuum, and `promoted-before` that of the
model before, so that a promotion can be undone.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import dagster as dg
from pydantic import Field

from smalti.catalog.manifest import read_header
from smalti.catalog.opening import Tag, find_newest, read_tag
from smalti.errors import StoreNotFound
from smalti.storage import Store, open_store
from smalti_dagster.checks.model import build_model_checks
from smalti_dagster.declaration import Declaration
from smalti_dagster.lineage import evaluations, facts_of, made_in, materialisations, tag_run
from smalti_dagster.places import shards_of
from smalti_dagster.reports.tables import Value, table_of_facts
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.shard_tags import PROMOTED, move_tag, promoted_model

BEFORE = "promoted-before"
"""The tag of the version whose model was in use before."""

FORMER = "former"
"""In place of a run: the model that was promoted before."""

_FACTS = (
    "model", "run", "task", "task_options", "accuracy", "main_metric", "main_value", "higher_is_better", "loss",
    "source", "digest",
)  # fmt: skip
_SHOWN = ("source", "version", "run", "model", "accuracy", "main_value", "promoted")
_SEARCHED = 50  # newest models that are looked through for one whose checks passed


class PromoteConfig(dg.Config):
    """The model to promote."""

    run: str = Field(
        default="",
        description="Id of the run that trained the model; empty: the newest model whose checks passed; former: the "
        "one that was promoted before, which undoes a promotion.",
    )


def promoted_key(declared: Declaration) -> dg.AssetKey:
    """Return the key of the asset of a data set's promoted model."""
    return dg.AssetKey([declared.name, PROMOTED])


def build_promotion(declared: Declaration) -> dg.AssetsDefinition:
    """Return the asset of the promoted model: to materialise it is to promote one."""
    key = promoted_key(declared)

    @dg.asset(
        key=key,
        deps=[declared.key("model")],
        group_name=declared.group or declared.name,
        owners=declared.owners or None,
        tags={"data_set": declared.name, **declared.tags},
        kinds={"pytorch"},
        description=f"The model in use, and the version that it was trained on, which has the tag `{PROMOTED}`. Made "
        "by hand: no schedule and no sensor promotes.",
    )
    @with_resources
    def promoted(
        context: dg.AssetExecutionContext, config: PromoteConfig, storage: StorageResource
    ) -> dg.MaterializeResult[Any]:
        store = shards_of(declared, storage).store()
        former = promoted_model(store)
        version, entry, failed = _choose(context, declared, config.run, former)
        _require(store, storage, version, entry)
        tag_run(context, declared, version=version)
        same = former is not None and (former.version, former.metadata.get("run")) == (version, entry["run"])
        if not same:
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            before = {"version": former.version, **_without_before(former)} if former is not None else {}
            if former is not None:
                move_tag(store, BEFORE, former.version)
            move_tag(
                store,
                PROMOTED,
                version,
                move=former or False,
                metadata={**entry, "promoted": now, "promoted_by": context.run.run_id, "before": before},
            )
        after = read_tag(store, PROMOTED)
        context.log.info("the model of run %s is promoted: version %s", entry["run"], version)
        return dg.MaterializeResult(metadata=_metadata(after, failed), data_version=dg.DataVersion(str(entry["run"])))

    return promoted


def _choose(
    context: dg.AssetExecutionContext, declared: Declaration, run: str, former: Tag | None
) -> tuple[int, dict[str, Any], list[str]]:
    """Return the version and the facts of the model to promote, and its checks that have not passed.

    Raises:
        dg.Failure: there is no such model.
    """
    instance, key = context.instance, declared.key("model")
    if run == FORMER:
        before = dict(former.metadata.get("before") or {}) if former is not None else {}
        if not before:
            raise dg.Failure("no model was promoted before: name a run", allow_retries=False)
        return int(before.pop("version")), before, []
    if run:
        event = made_in(instance, key, run)
        if event is None:
            raise dg.Failure(
                f"run {run} has made no {key.to_user_string()}: give the id of the run that trained the model, all of "
                "it; the asset's events show them",
                allow_retries=False,
            )
        return _entry(event, failed_checks(instance, declared, run))
    searched = 0
    for event in islice(materialisations(instance, key), _SEARCHED):
        searched += 1
        if not (failed := failed_checks(instance, declared, event.run_id)):
            return _entry(event, failed)
    if not searched:
        raise dg.Failure(f"{declared.name} has no model yet: train one", allow_retries=False)
    found = "its only model has not" if searched == 1 else f"none of its last {searched} models has"
    raise dg.Failure(
        f"{declared.name}: {found} passed all checks; train one, or name the run of the model to promote all the same",
        allow_retries=False,
    )


def failed_checks(instance: dg.DagsterInstance, declared: Declaration, run: str) -> list[str]:
    """Return the checks that have not passed for the model of a run; a warning counts as passed."""
    failed = []
    for check in build_model_checks(declared):
        of_run = (each for by, each in evaluations(instance, check.spec.key) if _is_about(each, by, run))
        newest = next(of_run, None)
        if newest is None or not (newest.passed or newest.severity is dg.AssetCheckSeverity.WARN):
            failed.append(check.spec.name)
    return failed


def _is_about(evaluation: dg.AssetCheckEvaluation, made_in_run: str, run: str) -> bool:
    """Return whether a result is about the model of a run: a check that is executed later names that run."""
    named = evaluation.metadata.get("model_run")
    return (named.value if named is not None else made_in_run) == run


def _entry(event: dg.EventLogEntry, failed: list[str]) -> tuple[int, dict[str, Any], list[str]]:
    facts = facts_of(event)
    known = {**facts, "run": event.run_id, "digest": facts["shards_digest"]}
    return int(facts["shards_version"]), {name: known[name] for name in _FACTS if name in known}, failed


def _require(store: Store, storage: StorageResource, version: int, entry: Mapping[str, Any]) -> None:
    """Make sure that version and model are still there.

    Raises:
        dg.Failure: one of them is gone.
    """
    newest = find_newest(store).header
    try:
        is_there = read_header(store, version).digest == entry["digest"]
    except StoreNotFound:
        is_there = False
    if not is_there or (newest is not None and version in newest.expired):
        raise dg.Failure(
            f"version {version} of {store.url} with digest {str(entry['digest'])[:12]}, on which run {entry['run']} "
            "has trained, is gone: promote another model",
            allow_retries=False,
        )
    model = str(entry["model"])
    if not any(True for _ in open_store(model, storage.options_for(model)).list()):
        raise dg.Failure(
            f"the model of run {entry['run']} is gone from {model}: promote another one", allow_retries=False
        )


def _without_before(found: Tag) -> dict[str, Any]:
    return {name: value for name, value in found.metadata.items() if name != "before"}


def _metadata(found: Tag, failed: Sequence[str]) -> dict[str, Any]:
    before: Mapping[str, Any] = found.metadata.get("before") or {}
    shown = {"promoted": _shown({"version": found.version, **found.metadata})}
    if before:
        shown["before"] = _shown(before)
    undo = f"materialise with run: {FORMER}" if before else "this is the first one: there is none to go back to"
    return {
        "lineage": table_of_facts(shown),
        **{name: float(found.metadata[name]) for name in ("accuracy", "main_value") if name in found.metadata},
        "model": dg.MetadataValue.path(str(found.metadata["model"])),
        "model_run": dg.MetadataValue.dagster_run(str(found.metadata["run"])),
        "shards_version": found.version,
        "shards_digest": str(found.metadata["digest"]),
        "source": str(found.metadata.get("source", "")),
        "undo": undo,
        **({"checks_that_have_not_passed": ", ".join(failed)} if failed else {}),
    }


def _shown(facts: Mapping[str, Any]) -> dict[str, Value]:
    other = "main_value" if "accuracy" in facts else "accuracy"  # a model has one of them
    return {each: facts.get(each, "") for each in _SHOWN if each != other} | {"run": str(facts.get("run", ""))[:8]}
