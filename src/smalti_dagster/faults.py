"""Retries of steps: Dagster executes a step again, in the same run, after a fault of the storage that may well pass.

Every request to a store is retried by the library already, for as long as its deadline allows. This is for outages that
last longer. Other faults are not retried: a second attempt at wrong data or options fails as the first one did.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from smalti.errors import StoreError, TrainingError
from smalti.storage.errors import is_transient
from smalti_dagster.resources.storage import StorageResource

STORE_RETRIES = 2
"""Times that a step is executed again."""


def retrying(function: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    """Return the function of an op, whose step is executed again after a transient fault of the storage."""

    @functools.wraps(function)
    def tried(context: dg.AssetExecutionContext, *, storage: StorageResource, **others: Any) -> Iterator[Any]:
        try:
            yield from function(context, storage=storage, **others)
        except (StoreError, TrainingError) as error:
            if not is_transient(error):
                raise
            wait = storage.retry_seconds * 4**context.retry_number
            context.log.warning(
                "%s; the step is executed again in %.0f s, at most %s times", error, wait, STORE_RETRIES
            )
            raise dg.RetryRequested(max_retries=STORE_RETRIES, seconds_to_wait=wait) from error

    return tried
