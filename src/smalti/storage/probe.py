"""A probe of a store: whether it can be reached, and which operations it allows, before long work relies on it.

The probe puts one small object into a folder of its own, and removes it. Every step has a deadline.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smalti.errors import SmaltiError, StoreAuthError, StoreError, StoreExists
from smalti.redaction import redact_address
from smalti.storage.opening import Place, open_store
from smalti.storage.retry import call_within
from smalti.storage.store import Store, put_own

PROBE_FOLDER = "smalti-probe"
"""Folder of the probe objects, below the place."""
STEP_SECONDS = 20.0
"""Time limit of each step."""
MAX_SKEW_SECONDS = 300.0
"""Difference of the clocks from which it is a problem: stores refuse requests signed 15 minutes ago or ahead."""


@dataclass(frozen=True)
class ProbeStep:
    """One operation that was tried."""

    name: str
    """`open`, `create`, `read`, `create only once`, `replace`, `list`, `delete` or `clock`."""
    problem: str
    """Text that says what failed, and what to do about it; empty if the step succeeded."""
    seconds: float
    is_refused: bool = False
    """True if the store refused the credentials, or the right to do this."""


@dataclass(frozen=True)
class Probe:
    """The outcome of `probe_store`."""

    url: str
    """Address of the place, without secrets."""
    steps: tuple[ProbeStep, ...]
    clock_skew: float | None
    """Seconds by which the store's clock is ahead of this machine's, to about a second; None if unknown."""

    @property
    def problems(self) -> tuple[str, ...]:
        """The failed steps, one line each; empty if the store can be used."""
        return tuple(f"{step.name}: {step.problem}" for step in self.steps if step.problem)


def probe_store(place: Place, options: Mapping[str, Any] | None = None, *, seconds: float = STEP_SECONDS) -> Probe:
    """Try to create, read, replace, list and delete an object at a place. Never raises for what is wrong there.

    Steps that need an earlier one are left out when that failed.

    Args:
        place: Address or store.
        options: Options of the store.
        seconds: Time limit of each step.
    """
    steps: list[ProbeStep] = []

    def step(name: str, act: Callable[[], Any]) -> Any:
        """Return the result of a step and record it; None if it failed."""
        begin = time.monotonic()
        result, is_refused = None, False
        try:
            result, problem = call_within(seconds, act), ""
        except (SmaltiError, TypeError, ValueError) as error:
            problem, is_refused = " ".join(str(error).split()), isinstance(error, StoreAuthError)
        steps.append(ProbeStep(name, problem, time.monotonic() - begin, is_refused))
        return result

    limits = {"request_timeout": seconds / 2, "request_attempts": 2}
    is_local = not isinstance(place, Store) and ":/" not in str(place) and not str(place).startswith("/Volumes/")
    store = step("open", lambda: open_store(place, options if is_local else {**limits, **(options or {})}))
    if store is None:
        return Probe(redact_address(str(place)), tuple(steps), None)
    key, first, second = f"{PROBE_FOLDER}/probe-{secrets.token_hex(8)}", b"smalti probe 1", b"smalti probe 2"

    def replace() -> None:
        store.put(key, second)
        _expect(store, key, second)

    step("create", lambda: put_own(store, key, first))
    is_created, skew = not steps[-1].problem, None
    if is_created:
        step("read", lambda: _expect(store, key, first))
        step("create only once", lambda: _refuses_a_second(store, key, second))
        step("replace", replace)
    begun = time.time()
    listed = step("list", lambda: {info.key: info.changed for info in store.list(PROBE_FOLDER)})
    if is_created and listed is not None:
        if key not in listed:
            steps.append(ProbeStep("list", "the object that was just put is not in the listing", 0.0))
        skew = step("clock", lambda: _skew(listed.get(key), begun))
    if is_created:
        step("delete", lambda: _remove(store, key))
    else:
        with suppress(SmaltiError):  # the put may have succeeded although its answer was lost
            call_within(seconds, lambda: store.delete(key))
    return Probe(redact_address(store.url), tuple(steps), skew)


def _expect(store: Store, key: str, data: bytes) -> None:
    found = store.get(key)
    if found != data:
        raise StoreError(
            f"{store.locate(key)}: put {len(data)} bytes, and read {len(found)} others; the store is faulty"
        )


def _refuses_a_second(store: Store, key: str, data: bytes) -> None:
    try:
        store.put_if_absent(key, data)
    except StoreExists:
        return
    raise StoreError(
        f"{store.url}: this store ignores conditional puts (If-None-Match), so two writers could both publish; use a "
        "store that honours them"
    )


def _skew(changed: float | None, begun: float) -> float | None:
    if changed is None:
        return None
    skew = changed - begun
    if abs(skew) > MAX_SKEW_SECONDS:
        raise StoreError(
            f"the store's clock and this machine's differ by {skew:+.0f} s; set this machine's clock (NTP)"
        )
    return skew


def _remove(store: Store, key: str) -> None:
    store.delete(key)
    if store.exists(key):
        raise StoreError(f"{store.locate(key)} is still there after it was deleted")
