"""The one place where tests learn which random cases to draw.

Without `SMALTI_SEED` every run draws the same cases, so that a failure is due to a change of the code. With
`SMALTI_SEED=N` (as `make test-nightly` sets it) all searches draw other cases, decided by N alone: Hypothesis' own, and
those of tests that carry the mark `search`, which take their seeds from `seed_of`.
"""

import hashlib
import os

VARIABLE = "SMALTI_SEED"
SEED: int | None = int(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def seed_of(fixed: int, seed: int | None = SEED) -> int:
    """Return the seed of one case: `fixed` itself, or under SMALTI_SEED a number of 32 bits derived from both."""
    if seed is None:
        return fixed
    return int.from_bytes(hashlib.blake2b(f"{seed} {fixed}".encode(), digest_size=4).digest(), "big")


def sized(count: int, seed: int | None = SEED) -> int:
    """Return how many cases a long search draws: `count` fresh ones, or a fifth of the fixed ones."""
    return count if seed is not None else count // 5


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
