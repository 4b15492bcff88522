"""Properties that the assets of a data set have in common: key, group, owners, tags and the version of their code."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from assets.declaration import Declaration, Stage


def stage_asset(
    declared: Declaration, stage: Stage, *, code: str, config: type[dg.Config] | None = None, **options: Any
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return a decorator that makes a function the asset of a stage.

    Args:
        declared: The data set.
        stage: Which of its assets.
        code: Version of the function; another one, or another declaration, marks the asset as out of date.
        config: Type of the function's parameter `config`.
        options: Further arguments of `dg.asset`.
    """

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        if config is not None:
            function.__annotations__["config"] = config
        asset: dg.AssetsDefinition = dg.asset(
            key=declared.key(stage),
            group_name=declared.group or declared.name,
            owners=declared.owners or None,
            tags={"data_set": declared.name, **declared.tags},
            code_version=declared.code_version(stage, code),
            **options,
        )(function)
        return asset

    return decorate
