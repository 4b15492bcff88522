"""The configuration that assets were last materialised with, so that automation repeats what a person chose."""

from collections.abc import Iterable
from typing import Any

import dagster as dg

from assets.lineage import latest


def last_config(instance: dg.DagsterInstance, assets: Iterable[str]) -> dict[str, Any]:
    """A run configuration that gives each asset what its newest materialisation was given; defaults are left out.

    Secrets stay references to environment variables, as they were entered.
    """
    ops: dict[str, Any] = {}
    for asset in assets:
        event = latest(instance, asset)
        run = instance.get_run_by_id(event.run_id) if event and event.run_id else None
        if run is not None:
            entered: dict[str, Any] = dict(run.run_config).get("ops") or {}  # type: ignore[assignment]
            given = entered.get(asset, {}).get("config")
            if given:
                ops[asset] = {"config": dict(given)}
    return {"ops": ops} if ops else {}
