"""MosaicML Streaming itself, to compare with."""

from tests.golden.conftest import peer  # noqa: F401 - a fixture
