"""The registry of schemes: its entries are complete, and one entry with one maker is a new scheme."""

from collections.abc import Callable

import pytest

from smalti.errors import StoreAuthError
from smalti.storage import open_store, schemes
from smalti.storage.errors import translate
from smalti.storage.schemes import SCHEMES, Scheme


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_the_module_that_an_entry_names_makes_file_systems(scheme):
    assert callable(scheme.backend.make)
    assert isinstance(scheme.backend.option_names, Callable)


def test_names_and_aliases_are_unique():
    names = [name for scheme in SCHEMES for name in (scheme.name, *scheme.aliases)]
    assert len(names) == len(set(names))


def make(options):
    """Stand in for the maker that a new scheme brings."""
    return schemes.make_filesystem("memory", {})


def test_one_entry_and_one_maker_add_a_scheme(monkeypatch):
    b2 = Scheme(name="b2", module=__name__, has_conditional_puts=True, credentials_help="set B2_APPLICATION_KEY")
    monkeypatch.setitem(schemes.SCHEME_BY_NAME, "b2", b2)
    store = open_store("b2://bucket/prefix")
    assert store.url == "b2://bucket/prefix"
    store.put("key", b"1")
    etag = store.get_tagged("key").etag
    store.put_if_match("key", b"2", etag)
    assert store.get("key") == b"2"
    error = translate(PermissionError("no"), what="cannot read", scheme=store.scheme, detail="no", facts={})
    assert isinstance(error, StoreAuthError)
    assert "set B2_APPLICATION_KEY" in str(error)
