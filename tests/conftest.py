"""Fixtures that every room's tests share."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden data and photos beside the project; the test is skipped where it is absent."""
    if not (SHARED / "golden").is_dir():
        pytest.skip(f"needs the shared test data, expected at {SHARED}")
    return SHARED
