"""Facts that one asset hands to the next: those of a materialisation, written and read under fixed names.

Stages hand over addresses, versions and digests, never data: a DataFrame or tensor does not go through Dagster.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from smalti_dagster.declaration import Declaration, Stage

DATA_SET_TAG = "smalti/data_set"
"""Tag of every run of a data set: its name."""

DECLARATION_TAG = "smalti/declaration"
"""Tag of every run of a data set: the digest of its declaration."""

SOURCE_TAG = "smalti/source"
"""Tag of a run that reads a source: the digest of what it read."""

READS_TAG = "smalti/reads"
"""Tag of a run that reads a source: a digest of where it reads, by which the last run that read there is found."""

VERSION_TAG = "smalti/version"
"""Tag of a run that publishes a version or trains on one: its number."""

DIGEST_TAG = "smalti/digest"
"""Tag of a run that publishes a version: its digest."""

RESUME_TAG = "dagster/is_resume_retry"
"""Tag that Dagster gives a re-execution from failure."""

TRAINS_TAG = "smalti/trains"
"""Tag of every run that trains: the whole digest of the shard set version that it trains on."""

CHECKED_IN = "checked_in_run"
"""In the metadata of a check that was not made again: the run in which it was made."""

CONTENT = "content_digest"
"""In the metadata of a check: a digest of all that its result depends on, so that it is not made twice."""

_NO_RUN = "none"  # in a tag, in place of a run's id: the materialisation was reported outside of any run
_RECENT = 25  # times that a check was made which are looked through
_PAGE = 25  # materialisations that are asked for at once


def reads(described: str) -> str:
    """Return what the tag `READS_TAG` holds for a source, given by its description."""
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def content_digest(content: str) -> str:
    """Return what the metadata `CONTENT` of a check holds."""
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def facts_of(event: dg.EventLogEntry) -> dict[str, Any]:
    """The metadata of a materialisation as plain values, under the names they were written with."""
    materialization = event.asset_materialization
    if materialization is None:
        raise ValueError(f"event of type {event.dagster_event_type} is not a materialisation")
    return {name: value.value for name, value in materialization.metadata.items()}


def run_tags(declared: Declaration) -> dict[str, str]:
    """Return the tags that every run of a data set has."""
    return {DATA_SET_TAG: declared.name, DECLARATION_TAG: declared.digest()}


def tag_run(context: dg.AssetExecutionContext, declared: Declaration, **facts: object) -> None:
    """Tag the run of a step with its data set and with facts, by the last part of their tags' names."""
    tags = {f"smalti/{name}": str(value) for name, value in facts.items()}
    context.instance.add_run_tags(context.run.run_id, {**run_tags(declared), **tags})


def entered_config(run: dg.DagsterRun, declared: Declaration, stage: Stage) -> Mapping[str, Any]:
    """Return what was entered for a stage up to the shards when a run was launched; defaults are not in it."""
    entered: dict[str, Any] = dict(run.run_config).get("ops") or {}  # type: ignore[assignment]
    of_set = (each.get("config") or {} for op, each in entered.items() if op.startswith(f"{declared.name}__"))
    return next((config[stage] for config in of_set if config.get(stage)), {})


def latest(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dg.EventLogEntry | None:
    """Return the newest materialisation of an asset, by whatever run; None if there is none."""
    return next(materialisations(instance, asset), None)


def materialisations(
    instance: dg.DagsterInstance, asset: dg.AssetKey, *, before: float | None = None, oldest_first: bool = False
) -> Iterator[dg.EventLogEntry]:
    """Iterate over the materialisations of an asset, newest first; only those before a time, if one is given."""
    wanted, cursor = dg.AssetRecordsFilter(asset, before_timestamp=before), None
    while True:
        page = instance.fetch_materializations(wanted, limit=_PAGE, cursor=cursor, ascending=oldest_first)
        yield from (record.event_log_entry for record in page.records)
        if not page.has_more:
            return
        cursor = page.cursor


def made_in(instance: dg.DagsterInstance, asset: dg.AssetKey, run_id: str) -> dg.EventLogEntry | None:
    """Return the materialisation of an asset by a run, the newest of several; None if it made none."""
    return next(iter(_all_made_in(instance, asset, run_id)), None)


def _all_made_in(instance: dg.DagsterInstance, asset: dg.AssetKey, run_id: str) -> list[dg.EventLogEntry]:
    """Return the materialisations of an asset by a run, newest first."""
    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    made = [(event, event.asset_materialization) for event in reversed(events)]
    return [event for event, each in made if each is not None and each.asset_key == asset]


@dataclass(frozen=True)
class Passes:
    """The times that a check passed, newest first: the run, and what the check said then."""

    found: tuple[tuple[str, Mapping[str, Any]], ...]
    is_last_failed: bool = False
    """True if the check failed the last time that it was made."""

    def run_for(self, content: str) -> str | None:
        """The run in which the same content passed, as its digest in the metadata says; None if there is none.

        What is named by its digest does not change, so that a check of all of it need not be made twice.
        """
        for run_id, metadata in self.found:
            if metadata.get(CONTENT) == content_digest(content):
                return str(metadata.get(CHECKED_IN, run_id))
        return None

    @property
    def last_made(self) -> Mapping[str, Any] | None:
        """Metadata of the last time that the check was made, and did not point to an earlier run; None if never."""
        return next((metadata for _, metadata in self.found if CHECKED_IN not in metadata), None)


def passes_of(instance: dg.DagsterInstance, check: dg.AssetCheckKey) -> Passes:
    """Return the times that a check passed; Dagster is asked once."""
    made = list(evaluations(instance, check))
    passed = ((run, said) for run, said in made if said.passed)
    return Passes(
        tuple((run, {name: value.value for name, value in said.metadata.items()}) for run, said in passed),
        is_last_failed=bool(made) and not made[0][1].passed,
    )


def evaluations(instance: dg.DagsterInstance, check: dg.AssetCheckKey) -> Iterator[tuple[str, dg.AssetCheckEvaluation]]:
    """Iterate over the last times that a check was made, newest first: the run, and what the check said."""
    for record in instance.event_log_storage.get_asset_check_execution_history(check, limit=_RECENT):
        made = record.event.dagster_event if record.event is not None else None
        if made is not None and made.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            yield record.run_id, made.asset_check_evaluation_data


def upstream(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, asset: dg.AssetKey
) -> Mapping[str, Any]:
    """Return the facts of the materialisation that this step builds on.

    1. The one of its own run comes first, then that of the run that it re-executes, and so on to the first of them, or
       to one that was deleted.
    2. Then the one that the run, or one that it re-executes, took from another run before.
    3. A re-execution that finds none is refused if the asset is one that its job makes, or if a run before it was
       deleted: what its data was is not known.
    4. Any other run takes the newest of any run, and notes in its tags which that was, before it is used. So does a
       re-execution: no run before it has got so far.

    Raises:
        dg.Failure: the asset was never materialised, or it is not known which materialisation a run has used.
    """
    instance, name = context.instance, asset.to_user_string()
    runs = _run_and_those_before(instance, context.run.run_id)
    for run in runs:
        if (event := made_in(instance, asset, run.run_id)) is not None:
            return facts_of(event)
    for run in runs:
        if (taken := run.tags.get(_taken_from(asset))) is not None:
            return _taken_before(instance, asset, run, taken)
    is_deleted = bool(runs and runs[-1].parent_run_id)
    if context.run.parent_run_id is not None and (is_deleted or asset in _made_by_job(context)):
        deleted = f" (run {runs[-1].parent_run_id} was deleted)" if is_deleted else ""
        raise dg.Failure(
            f"run {context.run.run_id} is a re-execution of run {context.run.parent_run_id}, and neither that one nor "
            f"one before it made asset {name} or noted which materialisation of it was used{deleted}: re-execute it "
            f"with {name} as well, or launch a new run, which takes the newest",
            allow_retries=False,
        )
    newest = latest(instance, asset)
    if newest is None:
        remedy = "materialise it first"
        if not os.environ.get("DAGSTER_HOME"):  # Dagster then keeps its records in a temporary folder
            remedy += (
                ", and set DAGSTER_HOME to a folder that stays: without it, Dagster's records end with each command"
            )
        raise dg.Failure(f"asset {name} has never been materialised: {remedy}", allow_retries=False)
    facts = facts_of(newest)
    tags = {_taken_from(asset): newest.run_id or _NO_RUN, _taken_digest(asset): str(facts.get("digest", ""))}
    instance.add_run_tags(context.run.run_id, tags)
    return facts


def _made_by_job(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> set[dg.AssetKey]:
    """Return the assets that the job of a step makes, in whichever step."""
    return set(context.op_execution_context.job_def.asset_layer.executable_asset_keys)


def made_before(context: dg.AssetExecutionContext, asset: dg.AssetKey) -> dg.EventLogEntry | None:
    """Return the materialisation of an asset that a step which is tried again takes over; None if there is none.

    1. A step that is retried has made it in an earlier attempt of its own run.
    2. A re-execution from failure takes the one of the run that failed, which may be such a re-execution itself. Any
       other re-execution makes it anew, and so does a re-execution of that one.
    """
    if context.retry_number and (event := made_in(context.instance, asset, context.run.run_id)) is not None:
        return event
    runs = _run_and_those_before(context.instance, context.run.run_id)
    for run, parent in itertools.pairwise(runs):
        if RESUME_TAG not in run.tags:
            return None
        if (event := made_in(context.instance, asset, parent.run_id)) is not None:
            return event
    return None


def is_reexecuted_whole(run: dg.DagsterRun) -> bool:
    """Return whether a run is a re-execution that takes nothing over from the run before it."""
    return run.parent_run_id is not None and RESUME_TAG not in run.tags


def _taken_from(asset: dg.AssetKey) -> str:
    """Return the tag that holds the run whose materialisation of an asset was used."""
    return f"smalti/{'.'.join(asset.path)}.run"


def _taken_digest(asset: dg.AssetKey) -> str:
    """Return the tag that holds the digest of the materialisation that was used."""
    return f"smalti/{'.'.join(asset.path)}.digest"


def _run_and_those_before(instance: dg.DagsterInstance, run_id: str) -> list[dg.DagsterRun]:
    """Return a run, as it is now, and the chain of runs that it re-executes, up to the first or to a deleted one.

    Those before a deleted one do not count: it may have made their assets anew.
    """
    runs: dict[str, dg.DagsterRun] = {}
    following: str | None = run_id
    while following is not None and following not in runs:
        run = instance.get_run_by_id(following)
        if run is None:
            break
        runs[following], following = run, run.parent_run_id
    return list(runs.values())


def _taken_before(
    instance: dg.DagsterInstance, asset: dg.AssetKey, run: dg.DagsterRun, taken: str
) -> Mapping[str, Any]:
    """Return the facts of the materialisation that a run took from another one, as its tags say.

    Raises:
        dg.Failure: that one is gone.
    """
    digest = run.tags.get(_taken_digest(asset), "")
    outside = (event for event in materialisations(instance, asset) if not event.run_id)
    for facts in map(facts_of, outside if taken == _NO_RUN else _all_made_in(instance, asset, taken)):
        if str(facts.get("digest", "")) == digest:
            return facts
    raise dg.Failure(
        f"run {run.run_id} has used the materialisation of asset {asset.to_user_string()} by run {taken} (digest "
        f"{digest[:12]}), which is gone: launch a new run, which takes the newest",
        allow_retries=False,
    )
