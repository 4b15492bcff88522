"""The resources of an op, a sensor or a schedule: those that the project defines, else those that the environment says.

Intended behaviour:
1. A project need not define any resource: what it does not define follows from the environment
   (`smalti_dagster.resources.deployment.detect_resources`).
2. A resource that the project defines under a key of `KEYS`, in its own `Definitions` or by the component
   `Deployment`, is used in place of that.
3. Dagster requires that the resources that an asset names are defined when the code location is loaded, and refuses two
   of one key. So the assets name none: they are looked up when a step or tick begins, and are initialised by Dagster's
   own `build_resources`, which resolves `dg.EnvVar` and calls `setup_for_execution` and `teardown_after_execution`.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

import dagster as dg

KEYS: Mapping[str, str] = {
    "storage": "smalti_storage",
    "spark": "smalti_spark",
    "trainer": "smalti_trainer",
    "notifications": "smalti_notifications",
}
"""Keys of the resources by the name of the parameter that takes one."""

_CONTEXT = "context"


@contextlib.contextmanager
def open_resources(context: Any, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the initialised resources of these parameters, for the context of an op, an asset, a check or a tick.

    Raises:
        ValueError: the environment does not say what is needed; the message names the variable.
        dg.Failure: an asset of the step, or one that it is made from, was made in another stage.
        TypeError: the project has defined something else under one of the keys.
    """
    defined = _defined_in(context)
    chosen = {KEYS[name]: defined[KEYS[name]] for name in names if KEYS[name] in defined}
    if len(chosen) < len(names):
        from smalti_dagster.resources.deployment import detect_resources

        detected = detect_resources()
        chosen |= {KEYS[name]: detected[KEYS[name]] for name in names if KEYS[name] not in chosen}
    run = _run_of(context)
    log = context.log if run is not None else None  # a tick's log is of another class
    with dg.build_resources(chosen, instance=context.instance, dagster_run=run, log_manager=log) as resources:
        opened = {name: getattr(resources, KEYS[name]) for name in names}
        if "storage" in opened and (assets := _assets_of(context)):
            opened["storage"].refuse_other_stage(context.instance, assets)
        yield opened


def with_resources(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function without the parameters that are names of `KEYS`, which are opened when it is called.

    It may be a generator, and need not take a context itself.
    """
    parameters = dict(inspect.signature(function).parameters)
    names = [name for name in parameters if name in KEYS]
    takes_context = _CONTEXT in parameters
    hints = get_type_hints(function)

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def bound(context: Any, **others: Any) -> Any:
            with open_resources(context, names) as resources:
                yield from function(**({_CONTEXT: context} if takes_context else {}), **others, **resources)

    else:

        @functools.wraps(function)
        def bound(context: Any, **others: Any) -> Any:
            with open_resources(context, names) as resources:
                return function(**({_CONTEXT: context} if takes_context else {}), **others, **resources)

    for name in names:
        parameters.pop(name)
    first = inspect.Parameter(_CONTEXT, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kept = [parameters.pop(_CONTEXT, first), *parameters.values()]
    bound.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    bound.__annotations__ = {name: hint for name, hint in hints.items() if name not in names}
    del bound.__wrapped__  # Dagster would look at its parameters
    return bound


def _defined_in(context: Any) -> Mapping[str, Any]:
    """Return the definitions of the resources of the code location, by key."""
    if isinstance(context, dg.SensorEvaluationContext | dg.ScheduleEvaluationContext):
        return {**_top_level(context), **(context.resource_defs or {})}
    op = getattr(context, "op_execution_context", context)
    defined: Mapping[str, Any] = op.job_def.resource_defs
    return defined


def _top_level(context: Any) -> Mapping[str, Any]:
    """Return the resources of the code location of a tick; none in a test that has no code location."""
    try:
        repository: Any = context.repository_def
    except dg.DagsterInvariantViolationError:
        return {}
    found: Mapping[str, Any] = repository.get_top_level_resources() if repository is not None else {}
    return found


def _assets_of(context: Any) -> set[dg.AssetKey]:
    """Return the keys of the assets that a step makes or checks, and of those that they are made from."""
    if isinstance(context, dg.AssetCheckExecutionContext):
        return {key.asset_key for key in context.selected_asset_check_keys}
    if not isinstance(context, dg.AssetExecutionContext):
        return set()
    made = {*context.selected_asset_keys, *(key.asset_key for key in context.selected_asset_check_keys)}
    return made | {dep.asset_key for spec in context.assets_def.specs if spec.key in made for dep in spec.deps}


def _run_of(context: Any) -> dg.DagsterRun | None:
    op = getattr(context, "op_execution_context", context)
    run: dg.DagsterRun | None = getattr(op, "run", None)
    return run
