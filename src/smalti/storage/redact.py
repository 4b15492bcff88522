"""One place that removes secrets from text; every message and cause that a store raises passes through here."""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

from smalti.storage.schemes import SCHEME_BY_NAME, secret_variables

MASK = "***"

_SIGNED = (
    "sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential|x-goog-signature|x-goog-credential|"
    "awsaccesskeyid|token|access_token|accountkey|client_secret|client_assertion|sharedaccesssignature"
)
"""Names whose values are secret in an address and in any other text."""
_SIGNED_IN_ADDRESS = "sas|secret|password|passwd|pwd|key|api_?key|auth|code|rlkey"
"""Names whose values are secret in an address; elsewhere they are words."""

_WITHOUT_USER = "|".join(name for name, scheme in SCHEME_BY_NAME.items() if not scheme.allows_at_sign)
_USERS = (
    # user:password@host, with one slash too; a password may hold "/" and "@". "host:8080/a@b" has a port.
    re.compile(r"(?P<keep>\w:/{1,2}[^/\s:@'\"]*:)(?!\d{1,5}/)[^\s'\"]+(?=@)"),
    # token@host, where the part before "@" has no other meaning
    re.compile(rf"(?P<keep>\b(?:{_WITHOUT_USER}):/{{1,2}})[^/\s@'\"?#]+(?=@)", re.IGNORECASE),
)
_PATTERNS = (
    *_USERS,
    re.compile(
        rf"(?P<keep>(?:^|[?&;#,\s'\"({{]|%3F|%26|%23)(?:{_SIGNED})(?:=|%3D))[^&;\s'\"]+",
        re.IGNORECASE,
    ),
    re.compile(rf"(?P<keep>(?:[?&#]|%3F|%26|%23)(?:{_SIGNED_IN_ADDRESS})(?:=|%3D))[^&;\s'\"]+", re.IGNORECASE),
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

_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:/|dbfs:", re.IGNORECASE)

_SIGNATURE_PARAMETERS = frozenset(
    f"x-{vendor}-{name}"
    for vendor in ("amz", "goog")
    for name in ("algorithm", "credential", "date", "expires", "signature", "signedheaders", "security-token")
) | {"sig", "signature"}  # fmt: skip
_SAS_PARAMETERS = frozenset({
    "sv", "ss", "srt", "sp", "se", "st", "spr", "sip", "sr", "skoid", "sktid", "skt", "ske", "sks", "skv", "saoid",
    "suoid", "scid", "sdd", "ses",
})  # fmt: skip
"""Of Azure's shared access signatures, beside `sig`."""
_URL_SIGNATURE_PARAMETERS = frozenset({"awsaccesskeyid", "googleaccessid", "expires", "policy", "key-pair-id"})
"""Of older S3 and Google signatures and of CloudFront's, beside `Signature`."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with passwords, signatures, tokens and the given literal secrets masked."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: found.group("keep") + MASK, text)
    return text


def redact_address(address: str) -> str:
    """Return the address for messages: without user, password, query and fragment, any part of which may be secret."""
    shown = redact(address)
    if not _SCHEME.match(shown):
        return shown
    place, mark, _ = _split(shown)
    return f"{place}{mark}{MASK}" if mark else place


def has_login(address: str) -> bool:
    """Return whether an address holds a password, or a user where that is no part of the address."""
    return any(pattern.search(address) for pattern in _USERS)


def address_secrets(address: str) -> tuple[str, ...]:
    """Return the parts of query and fragment that may be secret, longest first: a library may repeat any of them."""
    place, _, tail = _split(address)
    parts = {tail, *re.split(r"[?#&;]", tail)}
    parts |= {part.partition("=")[2] for part in parts}
    parts |= {unquote(part) for part in parts}
    return tuple(sorted((part for part in parts if len(part) >= 6 and part not in place), key=_longest_first))


def unsigned_address(address: str) -> str:
    """Return an http(s) address without fragment, and without the parameters that only sign it.

    An address that was signed anew gives the same: by Azure (SAS), S3, Google or CloudFront. Other parameters may say
    which file is meant, and stay.
    """
    place, _, query = _split(address.partition("#")[0])
    pairs = [pair for pair in query.split("&") if pair]
    names = {_parameter(pair) for pair in pairs}
    signing = set(_SIGNATURE_PARAMETERS)
    if "sig" in names:
        signing |= _SAS_PARAMETERS
    if "signature" in names:
        signing |= _URL_SIGNATURE_PARAMETERS
    return "?".join([place, *sorted(pair for pair in pairs if _parameter(pair) not in signing)])


def _split(address: str) -> tuple[str, str, str]:
    """Address up to the query or fragment, the mark between them, and the rest."""
    place, mark, tail = re.match(r"([^?#]*)([?#]?)(.*)", address, re.DOTALL).groups()  # type: ignore[union-attr]
    return place, mark, tail


def _parameter(pair: str) -> str:
    return unquote(pair.partition("=")[0]).lower()


def _longest_first(text: str) -> tuple[int, str]:
    return -len(text), text


def secret_values(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The values in options (nested too) whose names say that they are secret, longest first; short ones are left."""
    found: set[str] = set()
    _collect(options, found)
    return tuple(sorted(found, key=_longest_first))


def detect_secrets() -> tuple[str, ...]:
    """The secrets that the environment holds for the stores' libraries, and the key inside a connection string."""
    found = []
    for name in secret_variables():
        value = os.environ.get(name, "")
        if len(value) >= 6:
            found += [value, *_INNER.findall(value)]
    return tuple(sorted(found, key=_longest_first))


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
