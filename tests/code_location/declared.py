"""The data set that the code location's tests declare, and its definitions."""

from typing import Any

import dagster as dg

from smalti_dagster import build_definitions
from smalti_dagster.declaration import Declaration, Source, Train
from smalti_dagster.resources.binding import KEYS
from smalti_dagster.resources.deployment import detect_resources

DRAWN = Source(generate="assets.drawing:draw_flowers", generate_options={"per_class": 160})


def declare(**attributes: Any) -> Declaration:
    """The flowers as they are shipped, but for these attributes."""
    shipped = {"name": "flowers", "source": DRAWN, "train": Train()}
    return Declaration(**{**shipped, **attributes})


FLOWERS = declare()


def define(declared: Declaration, **resources: Any) -> dg.Definitions:
    """The definitions of a data set on these resources, and else those of a deployment without any settings."""
    given = {KEYS[name]: resource for name, resource in resources.items()}
    shared = dg.Definitions(resources={**detect_resources({}), **given})
    return dg.Definitions.merge(build_definitions(declared), shared)
