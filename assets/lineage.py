"""What one asset tells the next: the facts of a materialisation, written and read under fixed names.

Stages hand over addresses, versions and digests, never data: a DataFrame or tensor does not go through Dagster.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

TRAINS_TAG = "smalti/trains"
"""Tag of every run that trains: the whole digest of the shard set version that it trains on."""

CHECKED_IN = "checked in run"
"""In the metadata of a check that was not made again: the run in which it was made."""

_RECENT = 25  # materialisations in which the one of this run is looked for


def facts_of(event: dg.EventLogEntry) -> dict[str, Any]:
    """The metadata of a materialisation as plain values, under the names they were written with."""
    materialization = event.asset_materialization
    if materialization is None:
        raise ValueError(f"event of type {event.dagster_event_type} is not a materialisation")
    return {name: value.value for name, value in materialization.metadata.items()}


def latest(instance: dg.DagsterInstance, asset: str, *, run_id: str | None = None) -> dg.EventLogEntry | None:
    """The newest materialisation of an asset; that of the given run comes first, if it made one."""
    records = instance.fetch_materializations(dg.AssetKey(asset), limit=_RECENT if run_id else 1).records
    ours = [record for record in records if record.run_id == run_id]
    chosen = [*ours, *records]
    return chosen[0].event_log_entry if chosen else None


@dataclass(frozen=True)
class Passes:
    """The times that a check passed, newest first: the run, and what the check said then."""

    found: tuple[tuple[str, Mapping[str, Any]], ...]

    def run_for(self, content: str) -> str | None:
        """The run in which the same content passed, as the metadata `content` says; None if there is none.

        What is named by its digest does not change, so that a check of all of it need not be made twice.
        """
        for run_id, metadata in self.found:
            if metadata.get("content") == content:
                return str(metadata.get(CHECKED_IN, run_id))
        return None

    @property
    def last_made(self) -> Mapping[str, Any] | None:
        """What the check said the last time that it was made, and did not point to an earlier run; None if never."""
        return next((metadata for _, metadata in self.found if CHECKED_IN not in metadata), None)


def passes_of(context: dg.AssetCheckExecutionContext) -> Passes:
    """The times that this check passed; Dagster is asked once.

    There are none for a check that a person executes by itself, without the asset: it is made again.
    """
    [spec] = context.check_specs
    event = latest(context.instance, spec.asset_key.to_user_string(), run_id=context.run.run_id)
    if event is None or event.run_id != context.run.run_id:
        return Passes(())
    return Passes(tuple(_passed(context.instance, spec.key)))


def _passed(instance: dg.DagsterInstance, check: dg.AssetCheckKey) -> Iterator[tuple[str, dict[str, Any]]]:
    for record in instance.event_log_storage.get_asset_check_execution_history(check, limit=_RECENT):
        made = record.event.dagster_event if record.event is not None else None
        if made is None or made.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            continue
        said = made.asset_check_evaluation_data
        if said.passed:
            yield record.run_id, {name: value.value for name, value in said.metadata.items()}


def upstream(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, asset: str) -> Mapping[str, Any]:
    """The facts of the materialisation that this step builds on.

    Raises:
        dg.Failure: the asset was never materialised.
    """
    event = latest(context.instance, asset, run_id=context.run.run_id)
    if event is None:
        raise dg.Failure(f"asset {asset} has never been materialised: materialise it first", allow_retries=False)
    return facts_of(event)
