"""Redaction of the secrets that stores know of: those of the environment, and those in errors and logs of libraries.

The redaction of text is in `smalti.redaction`.
"""

import logging
import os
from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import unquote

from smalti.redaction import inner_secrets, redact
from smalti.storage.schemes import secret_variables

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
"""Variables of all client libraries, also in capitals: the address of a proxy, which may have a login."""


def detect_secrets() -> tuple[str, ...]:
    """Return the secrets in the stores' environment variables, keys in connection strings, and logins of proxies."""
    values = (os.environ.get(name, "") for name in secret_variables())
    found = {part for value in values for part in inner_secrets(value)}
    for proxy in (os.environ.get(name) for known in _PROXIES for name in (known, known.upper())):
        login = (proxy or "").rpartition("@")[0].rpartition("//")[2]
        password = login.partition(":")[2] or login
        found.update(part for text in (password, unquote(password)) for part in inner_secrets(text))
    return tuple(sorted(found, key=lambda text: (-len(text), text)))


def safe_cause(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """Return the error, or a `RuntimeError` with its redacted text if it or one of its causes contains a secret."""
    known = tuple(secrets)
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        link = pending.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        text = f"{link} {link!r} {link.args!r} {vars(link)!r}"
        if redact(text, known) != text:
            return RuntimeError(redact(f"{type(error).__name__}: {error}", known))
        pending += [link.__cause__, link.__context__]
    return error


def raise_clean(error: BaseException, cause: BaseException, secrets: Iterable[str] = ()) -> NoReturn:
    """Raise an error with a cause that contains no secret, and without a context.

    `raise ... from` alone would keep the library's error as the context, which error trackers log.
    """
    try:
        raise error from safe_cause(cause, secrets)
    finally:
        error.__context__ = None
        del error, cause  # the traceback holds this frame: a cycle would keep all callers' frames until a collection


class HideSecrets(logging.Filter):
    """A filter for the log of a library that logs replies of servers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask secrets in the record, and drop the traceback of a record that has any; keep every record."""
        text = logging.Formatter().format(record)
        if redact(text, detect_secrets()) != text:
            record.msg, record.args = redact(record.getMessage(), detect_secrets()), ()
            record.exc_info = record.exc_text = record.stack_info = None
        return True
