"""The small sets of the catalog's tests."""

from tests.catalog.conftest import make_draft

__all__ = ["make_draft"]
