"""The configuration that assets were last materialised with, so that automation repeats what a person chose."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from assets.lineage import entered_config, facts_of, materialisations

_ONCE = {"mds_shards": ("rewrite", "accept_removed"), "trained_model": ("version", "digest")}
"""Choices for one run, which automation does not repeat."""


def last_config(instance: dg.DagsterInstance, assets: Iterable[str], source: str) -> dict[str, Any]:
    """Return a run configuration that gives each asset what its newest materialisation from a source was given.

    Runs of other sources do not count. Defaults are left out; so is an asset that was never materialised from the
    source. Secrets stay references to environment variables, as they were entered.

    Raises:
        LookupError: the runs that say how an asset was configured, or what `raw_images` read, were deleted, so that a
            run without their configuration would read another source, or prepare it in another way.
    """
    ops = {asset: {"config": given} for asset in assets if (given := _last_given(instance, asset, source))}
    return {"ops": ops} if ops else {}


def _last_given(instance: dg.DagsterInstance, asset: str, source: str) -> Mapping[str, Any]:
    was_made = asset == "raw_images"  # by what the source is known, even if nothing is left of it
    for event in materialisations(instance, asset):
        if facts_of(event).get("source") != source:
            continue
        was_made = True
        run = instance.get_run_by_id(event.run_id) if event.run_id else None
        if run is not None:
            once = _ONCE.get(asset, ())
            return {name: value for name, value in entered_config(run, asset).items() if name not in once}
    if was_made:
        raise LookupError(
            f"no run is left that says how {asset} was configured for {source}: launch a run of it by hand once"
        )
    return {}
