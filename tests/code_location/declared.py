"""The data set that the code location's tests declare, and its definitions."""

from typing import Any

import dagster as dg

from assets.declaration import Declaration, Drawn, Source, Train
from pipelines.data_set import build_definitions
from pipelines.stages import detect_resources


def declare(**attributes: Any) -> Declaration:
    """The flowers as they are shipped, but for these attributes."""
    shipped = {"name": "flowers", "source": Source(drawn=Drawn()), "train": Train()}
    return Declaration(**{**shipped, **attributes})


FLOWERS = declare()


def define(declared: Declaration, **resources: Any) -> dg.Definitions:
    """The definitions of a data set on these resources, and else those of a deployment without any settings."""
    shared = dg.Definitions(resources={**detect_resources({}), **resources})
    return dg.Definitions.merge(build_definitions(declared), shared)
