"""The one place where tests learn which random cases to draw.

Without `SMALTI_SEED` every run draws the same cases, so that a failure is due to a change of the code. With
`SMALTI_SEED=N` (as `make test-nightly` sets it) all searches draw other cases, decided by N alone: Hypothesis' own, and
those of tests that carry the mark `search`, which take their seeds from `seed_of`.
"""

import hashlib
import os
from collections.abc import Callable

VARIABLE = "SMALTI_SEED"
SEED: int | None = int(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
_SETTINGS = "_hypothesis_internal_use_settings"  # where Hypothesis' own plugin for pytest looks for them


def seed_of(fixed: int, seed: int | None = SEED) -> int:
    """Return the seed of one case: `fixed` itself, or under SMALTI_SEED a number of 32 bits derived from both."""
    if seed is None:
        return fixed
    return int.from_bytes(hashlib.blake2b(f"{seed} {fixed}".encode(), digest_size=4).digest(), "big")


def sized(count: int, seed: int | None = SEED, *, part: int = 5) -> int:
    """Return how many cases a long search draws: `count` fresh ones, or of the fixed ones a fifth or another part."""
    return count if seed is not None else count // part


def examples_of(count: int, seed: int | None = SEED) -> int:
    """Return how many examples Hypothesis draws: `count` fresh ones, or a quarter of the fixed ones, if that is 25.

    Fixed examples are the same in every run, so that after the first one more of them find only what a change breaks.
    """
    return count if seed is not None else max(min(count, 25), count // 4)


def settle_examples(test: Callable[..., object]) -> None:
    """Let a test of Hypothesis draw as many examples as `examples_of` says; called once for each function."""
    from hypothesis import settings

    drawn = getattr(test, _SETTINGS, settings.default)
    setattr(test, _SETTINGS, settings(drawn, max_examples=examples_of(drawn.max_examples)))


def explanation() -> str:
    """Return the line that says which cases this run draws, and how to draw them again."""
    if SEED is None:
        return f"searches: fixed seeds ({VARIABLE} is not set)"
    return f"searches: fresh seeds; replay with {VARIABLE}={SEED} .venv/bin/python -m pytest <test>"


def settle_hypothesis(seed: int | None = SEED) -> None:
    """Make Hypothesis draw what SMALTI_SEED decides, and replay by it; called once, before any test is imported."""
    from hypothesis import HealthCheck, core, settings
    from hypothesis.internal.conjecture.providers import HypothesisProvider
    from hypothesis.internal.constants_ast import Constants

    # By default it also draws constants that it finds in loaded modules; which are loaded depends on earlier tests.
    HypothesisProvider._local_constants = Constants()
    # A speed is never a test: on a busy machine one example may take a second. A failure prints what replays it.
    common = {"deadline": None, "print_blob": True, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("smalti", **common, derandomize=seed is None)
    settings.load_profile("smalti")
    core.global_force_seed = seed
