"""One place that removes secrets from text; every message and cause that a store raises passes through here."""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

MASK = "***"

_PATTERNS = (
    re.compile(r"(?P<keep>\w://[^/\s:@]*:)[^@/\s]+(?=@)"),  # user:password@host
    re.compile(
        r"(?P<keep>[?&;\s](?:sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential|x-goog-signature|"
        r"x-goog-credential|awsaccesskeyid|token|access_token|accountkey|client_secret|client_assertion|"
        r"sharedaccesssignature)=)[^&;\s'\"]+",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"(?P<keep>\bdapi)[0-9a-f]{8,}\b"),
    re.compile(r"(?P<keep>\beyJ)[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # a JSON web token
)

_INNER = re.compile(r"(?:accountkey=|sig=|^\w+ +)([^;&\s]+)", re.IGNORECASE)
"""The secret within a value: of a connection string, of a signature, of "Bearer ..."."""

_SECRET_NAMES = re.compile(
    r"secret|token|password|passwd|passphrase|sas|credential|connection_string|account_key|^key$|private|authorization",
    re.IGNORECASE,
)

_SECRET_VARIABLES = (
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GCS_SECRET", "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD", "AZURE_PASSWORD", "IDENTITY_HEADER",
    "MSI_SECRET", "DATABRICKS_TOKEN", "DATABRICKS_CLIENT_SECRET", "HF_TOKEN",
)  # fmt: skip


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with passwords, signatures, tokens and the given literal secrets masked."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: found.group("keep") + MASK, text)
    return text


def secret_values(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The values in options (nested too) whose names say that they are secret, longest first; short ones are left."""
    found: set[str] = set()
    _collect(options, found)
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def detect_secrets() -> tuple[str, ...]:
    """The secrets that the environment holds for the stores' libraries, and the key inside a connection string."""
    found = []
    for name in _SECRET_VARIABLES:
        value = os.environ.get(name, "")
        if len(value) >= 6:
            found += [value, *_INNER.findall(value)]
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def _collect(options: Mapping[str, Any], found: set[str], *, is_secret: bool = False) -> None:
    for name, value in options.items():
        named = is_secret or bool(_SECRET_NAMES.search(str(name)))
        if isinstance(value, Mapping):
            # Every header may be a login: of their names only some are known.
            _collect(value, found, is_secret=is_secret or str(name).lower() == "headers")
        elif named:
            text = value if isinstance(value, str) else getattr(value, "token", None)  # an object that logs in
            if isinstance(text, str):
                found |= {part for part in (text, *_INNER.findall(text)) if len(part) >= 6}


def safe_cause(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """The error itself, or, when anything that led to it shows a secret, a stand-in that carries the redacted text."""
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
    """Raise an error whose cause shows no secret, and that has nothing else behind it.

    `raise ... from` alone would keep the library's own error as the context, where loggers of errors find it.
    """
    try:
        raise error from safe_cause(cause, secrets)
    finally:
        error.__context__ = None


class HideSecrets(logging.Filter):
    """For the log of a library that writes down whatever a server says."""

    def filter(self, record: logging.LogRecord) -> bool:
        """The record's text without secrets; without its traceback, too, which would repeat the text."""
        said = logging.Formatter().format(record)
        shown = redact(said, detect_secrets())
        if shown != said:
            record.msg, record.args = redact(record.getMessage(), detect_secrets()), ()
            record.exc_info = record.exc_text = record.stack_info = None
        return True
