"""One place that removes secrets from text; every message and cause that a store raises passes through here."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"

_PATTERNS = (
    re.compile(r"(?P<keep>\w://[^/\s:@]*:)[^@/\s]+(?=@)"),  # user:password@host
    re.compile(
        r"(?P<keep>[?&;\s](?:sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential|x-goog-signature|"
        r"x-goog-credential|awsaccesskeyid|token|access_token|accountkey|sharedaccesssignature)=)[^&;\s'\"]+",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"(?P<keep>\bdapi)[0-9a-f]{8,}\b"),
)

_SECRET_NAMES = re.compile(
    r"secret|token|password|passwd|passphrase|sas|credential|connection_string|account_key|^key$|private|authorization",
    re.IGNORECASE,
)

_SECRET_VARIABLES = (
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GCS_SECRET", "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_CLIENT_SECRET", "DATABRICKS_TOKEN", "DATABRICKS_CLIENT_SECRET", "HF_TOKEN",
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
            found.append(value)
            found.extend(part.partition("=")[2] for part in value.split(";") if part.lower().startswith("accountkey="))
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def _collect(options: Mapping[str, Any], found: set[str]) -> None:
    for name, value in options.items():
        if isinstance(value, Mapping):
            _collect(value, found)
        elif isinstance(value, str) and len(value) >= 6 and _SECRET_NAMES.search(str(name)):
            found.add(value)


def safe_cause(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """The error itself, or, when any link of its chain shows a secret, a stand-in that carries the redacted text."""
    known = tuple(secrets)
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        text = f"{link} {link!r}"
        if redact(text, known) != text:
            return RuntimeError(redact(f"{type(error).__name__}: {error}", known))
        link = link.__cause__ or link.__context__
    return error
