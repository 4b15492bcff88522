"""The opening of addresses: from a path or URL to its store, without a request, and the addresses that are refused.

Also here: the check that what is read and what is written are different places, before anything is written.

A place within the other one counts too: what is written would be read as data, or removed with the set. Local paths are
compared without links, `..` and different spellings; addresses by server, bucket and folder.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from smalti.errors import ArgumentTypeError, CatalogError, StoreError
from smalti.redaction import has_login, redact, redact_address, redact_message
from smalti.storage.databricks.mount import is_databricks, open_databricks
from smalti.storage.local import LocalStore
from smalti.storage.object_store import FsspecStore
from smalti.storage.schemes import SCHEME_BY_NAME, Address, Scheme, bucket_address
from smalti.storage.store import Store, check_key

Place = Store | str | Path
"""A store, or the address of one."""
_WEB = ("http", "https")


def open_store(url: Place, options: Mapping[str, Any] | None = None) -> Store:
    """Return the store at an address; nothing is read or connected before its first use.

    Args:
        url: A path, `file://`, `s3://bucket/prefix`, `gs://`, `abfs://container/prefix` (`az://`, `azure://`),
            `dbfs:/Volumes/<catalog>/<schema>/<volume>/...`, `/Volumes/...`, `dbfs:/...`, `sftp://user@host/path`,
            `oci://bucket@namespace/prefix`, `memory://`; read-only: `hf://datasets/owner/name` and `https://`.
            "." is the working folder. A store is returned unchanged. docs/storage.md lists the credentials of each.
        options: Passed to the file system of the scheme (credentials, endpoint); see `FsspecStore`.

    Raises:
        StoreError: the address is empty, has an unknown scheme, a password, a signature, or no bucket.
        TypeError: it is neither text nor a path nor a store.

    Examples:
        >>> store = open_store("s3://bucket/users")
        >>> store.exists("index.json")
        True
    """
    if isinstance(url, Store):
        return url
    address: object = url  # callers without type checks pass anything
    if not isinstance(address, str | os.PathLike):
        shown = redact_message(f"{url!r:.80}")
        raise ArgumentTypeError(f"expected a path, a URL or a store, found {type(url).__name__}: {shown}")
    text = str(address)
    if text in {"", "file:", "file://"}:
        raise StoreError(
            f'the address is empty ({text!r}): expected a path or a URL. The working folder is "."', url=text
        )
    scheme, colon, rest = text.partition(":")
    has_one_slash = rest.startswith("/") and not rest.startswith("//")
    if colon and has_one_slash and scheme.lower() in SCHEME_BY_NAME and scheme != "dbfs":
        shown = redact_address(text)
        raise StoreError(
            f"{shown}: one slash is missing, expected {scheme}://...; a folder of that name is ./{shown}", url=shown
        )
    if is_databricks(text):
        check_secrets(text)
        return open_databricks(text, options)
    if "://" not in text:
        return LocalStore(text.removeprefix("file:"))
    if text.startswith("file://"):
        parts = urlsplit(text)
        if parts.netloc not in {"", "localhost"}:
            shown = redact_address(text)
            raise StoreError(
                f"{shown}: a file:// address has no host; write file:///{shown.partition('://')[2]}", url=shown
            )
        return LocalStore(unquote(parts.path))
    parsed = parse_address(text, options)
    return FsspecStore(parsed.scheme, parsed.root, parsed.options, url=parsed.url)


def check_address(text: str) -> None:
    """Check the form of an address without opening it; messages do not show secrets in it.

    Raises:
        StoreError: it is empty, has an unknown scheme, a password, a query, or no bucket.
    """
    if is_databricks(text):
        check_secrets(text)
    elif "://" in text and not text.startswith("file://"):
        _parts_of(text)
    else:
        open_store(text)


def service_of(text: str) -> str:
    """Return the canonical name of an address's scheme, as it is written if it is unknown; "" for a path. Pure."""
    written, mark, _ = text.partition("://")
    if text.startswith(("dbfs:", "/Volumes/")):
        return "dbfs"
    if not mark or written == "file":
        return ""
    known = SCHEME_BY_NAME.get(written)
    return known.name if known is not None else written


def parse_address(text: str, options: Mapping[str, Any] | None = None) -> Address:
    """Parse an address `<scheme>://...`.

    Raises:
        StoreError: unknown scheme, no bucket or host, a password or a query, or a prefix that leaves the root.
    """
    scheme, host, prefix = _parts_of(text)
    parse = getattr(scheme.backend, "parse_address", bucket_address)
    address: Address = parse(scheme.name, host, prefix, dict(options or {}))
    return address


def _parts_of(text: str) -> tuple[Scheme, str, str]:
    """Return the scheme, the host or bucket with its user, and the prefix of an address `<scheme>://...`."""
    written, _, rest = text.partition("://")
    shown = redact_address(text)
    scheme = SCHEME_BY_NAME.get(written)
    if scheme is None:
        known = ", ".join(f"{name}://" for name in sorted(SCHEME_BY_NAME) if name != "dbfs")
        named = f" {written!r}" if re.fullmatch(r"[A-Za-z][\w+.-]*", written) else ""  # else it may be a login
        raise StoreError(
            f"{shown}: unknown scheme{named}; expected a path, file://, dbfs:/Volumes/... or one of {known}",
            url=shown,
        )
    host, _, prefix = rest.partition("/")
    user, at, server = host.rpartition("@")
    if ":" in user or (at and not scheme.allows_at_sign):
        advice = scheme.credentials_help if scheme.name in _WEB else "give credentials as storage options"
        raise StoreError(f"{shown}: no user or password in an address; {advice}", url=shown)
    check_secrets(text)
    if not (server or scheme.name == "memory") or (at and not user):
        raise StoreError(f"{shown}: the bucket is missing; expected {written}://bucket/prefix", url=shown)
    prefix = prefix.strip("/")
    check_key(prefix, allow_root=True)
    return scheme, host, prefix


def check_secrets(address: str) -> None:
    """Refuse an address with a query, password, signature or token, because messages show addresses.

    A path is accepted.

    Raises:
        StoreError: it has one of them, or is one of the web with a fragment.
    """
    service = service_of(address)
    if not service and not has_login(address):
        return
    shown = redact_address(address)
    if "#" in address and service in SCHEME_BY_NAME and SCHEME_BY_NAME[service].is_web:
        raise StoreError(f"{shown}: no fragment in an address of the web; # in a name is written %23", url=shown)
    if "?" in address and not address.startswith("/"):
        advice = "give signatures and tokens as storage options"
        if service in _WEB:
            login = SCHEME_BY_NAME[service].credentials_help
            advice = f"a signature in an address is for one file, and a data set has many; {login}"
        raise StoreError(f"{shown}: no query in an address; {advice}", url=shown)
    if redact(address) != address:
        raise StoreError(
            f"{shown}: no password, signature or token in an address; give them as storage options", url=shown
        )


SAME, INSIDE, AROUND = "is the same place as", "lies inside", "contains"


def check_apart(source: Store, target: Store, *, advice: str) -> None:
    """Return only if neither of two stores is, or lies in, the folder of the other.

    Args:
        source: where something is read.
        target: where something is to be written.
        advice: what to do, the end of the message.

    Raises:
        CatalogError: they are the same folder, or one contains the other.
    """
    relation = relation_of(source, target)
    if relation is not None:
        raise CatalogError(
            f"{target.url} {relation} its source {source.url}; nothing was written: {advice}", url=target.url
        )


def relation_of(source: Store, target: Store) -> str | None:
    """Return how the target lies to the source: `SAME`, `INSIDE` or `AROUND`; None if they are apart."""
    (server, folder), (other_server, other) = _place_of(source), _place_of(target)
    if server != other_server:
        return None
    if folder == other:
        return SAME
    if other.startswith(f"{folder.rstrip('/')}/"):
        return INSIDE
    return AROUND if folder.startswith(f"{other.rstrip('/')}/") else None


def _place_of(store: Store) -> tuple[str, str]:
    """Return the server of a store, and its folder there, equal for all addresses of a folder."""
    inside = store.local_path("any")
    if inside is not None:
        return "", os.path.realpath(inside.parent)
    if isinstance(store, FsspecStore):
        return f"{store.scheme.name} {store.endpoint()}", f"/{store.root.strip('/')}"
    return "", store.url.rstrip("/")
