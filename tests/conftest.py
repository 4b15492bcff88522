"""Fixtures that every room's tests share."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SHARED = Path(__file__).resolve().parents[1].parent / "shared"

# A speed is never a test: on a busy machine one example may take a second. A failure prints the blob that replays it.
settings.register_profile("smalti", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("smalti")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden data and photos beside the project; the test is skipped where it is absent."""
    if not (SHARED / "golden").is_dir():
        pytest.skip(f"needs the shared test data, expected at {SHARED}")
    return SHARED
