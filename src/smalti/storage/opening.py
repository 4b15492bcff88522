"""From an address to a store: which scheme is which kind, and what is refused."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from smalti.errors import StoreError
from smalti.storage.databricks.mount import is_databricks, open_databricks
from smalti.storage.local import LocalStore
from smalti.storage.object_store import FsspecStore
from smalti.storage.redact import redact_address
from smalti.storage.schemes import SCHEMES, check_secrets, parse_address
from smalti.storage.store import Store

Place = Store | str | Path
"""Where something lies: a store, or the address of one."""


def open_store(url: Place, options: Mapping[str, Any] | None = None) -> Store:
    """The store at an address; nothing is read or connected before its first use.

    Args:
        url: A path, `file://`, `s3://bucket/prefix`, `gs://`, `abfs://container/prefix` (`az://`, `azure://`),
            `dbfs:/Volumes/<catalog>/<schema>/<volume>/...`, `/Volumes/...`, `dbfs:/...`, `sftp://user@host/path`,
            `oci://bucket@namespace/prefix`, `memory://`; to read alone `hf://datasets/owner/name` and `https://`.
            "." is the working folder. A store is handed back as it is. docs/storage.md has the credentials of each.
        options: Passed to the file system of the scheme (credentials, endpoint); see `FsspecStore`.

    Raises:
        StoreError: the address is empty, has an unknown scheme, a password, a signature, or no bucket.
        TypeError: it is no text, path or store.
    """
    if isinstance(url, Store):
        return url
    given: object = url
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"expected a path, a URL or a store, found {type(url).__name__}: {url!r:.80}")
    text = str(given)
    if text in {"", "file:", "file://"}:
        raise StoreError(
            f'the address is empty ({text!r}): expected a path or a URL. The working folder is "."', url=text
        )
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() in SCHEMES and scheme != "dbfs" and rest.startswith("/") and not rest.startswith("//"):
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
    address = parse_address(text, options)
    return FsspecStore(address.scheme, address.root, address.options, url=address.url)
