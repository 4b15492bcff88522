"""The way to a store: a proxy, and the authority of a company's own certificates."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smalti.errors import StoreError

PROXY, CA_BUNDLE = "proxy", "ca_bundle"
"""Names of the storage options."""


def proxies_of(options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the proxy by scheme, as requests, botocore and Azure expect it; None if none is given."""
    proxy = options.get(PROXY)
    return {"http": str(proxy), "https": str(proxy)} if proxy else None


def login_proxies_of(options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the proxy for requests of a login; a metadata service, which is asked over http, is on the machine."""
    found = proxies_of(options)
    return None if found is None else {"https": found["https"]}


def ca_bundle_of(options: Mapping[str, Any]) -> str | None:
    """Return the file with the certificates of the authorities to trust; None for the usual ones.

    Raises:
        StoreError: there is no such file here.
    """
    found = options.get(CA_BUNDLE)
    if found is None:
        return None
    path = Path(found).expanduser()
    if not path.is_file():
        raise StoreError(
            f"the storage option `ca_bundle` names {path}, which is not a file here; it must be there on every host "
            "that uses the store"
        )
    return str(path)


def ssl_context(ca_bundle: str) -> ssl.SSLContext:
    """Return a context that trusts the authorities in a file alone.

    Raises:
        StoreError: it holds no certificates.
    """
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except (ssl.SSLError, OSError) as error:
        raise StoreError(f"the storage option `ca_bundle` names {ca_bundle}, which has no certificates: {error}") from (
            error
        )
