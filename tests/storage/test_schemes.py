"""The registry of schemes: its entries are complete, and one entry with one maker is a new scheme."""

import pytest

from smalti.errors import StoreAuthError
from smalti.storage import open_store, schemes
from smalti.storage.errors import translate
from smalti.storage.schemes import SCHEMES, Scheme, load_function


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_every_function_that_an_entry_names_exists(scheme):
    for reference in (scheme.maker, scheme.parse_address, scheme.reader, scheme.fill_options):
        assert not reference or callable(load_function(reference))


def test_names_and_aliases_are_unique():
    names = [name for scheme in SCHEMES for name in (scheme.name, *scheme.aliases)]
    assert len(names) == len(set(names))


def make_b2(options):
    """Stand in for the maker that a new scheme brings."""
    return schemes.make_filesystem("memory", {})


def test_one_entry_and_one_maker_add_a_scheme(monkeypatch):
    b2 = Scheme(
        name="b2", maker=f"{__name__}:make_b2", has_conditional_puts=True, credentials_help="set B2_APPLICATION_KEY"
    )
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
