"""The data set `flowers`, which is built asset by asset in `assets.flowers`."""

import dagster as dg

from assets import flowers


@dg.definitions
def defs() -> dg.Definitions:
    """Return its assets, checks, jobs, schedule and sensors."""
    return flowers.definitions()
