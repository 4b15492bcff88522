"""What one asset tells the next: the facts of a materialisation, written and read under fixed names.

Stages hand over addresses, versions and digests, never data: a DataFrame or tensor does not go through Dagster.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

TRAINS_TAG = "smalti/trains"
"""Tag of every run that trains: the whole digest of the shard set version that it trains on."""

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


def upstream(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, asset: str) -> Mapping[str, Any]:
    """The facts of the materialisation that this step builds on.

    Raises:
        dg.Failure: the asset was never materialised.
    """
    event = latest(context.instance, asset, run_id=context.run.run_id)
    if event is None:
        raise dg.Failure(f"asset {asset} has never been materialised: materialise it first", allow_retries=False)
    return facts_of(event)
