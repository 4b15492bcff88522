"""Redaction of secrets in text: messages and causes of the stores' errors, addresses, and logs of client libraries."""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

from smalti.storage.schemes import SCHEME_BY_NAME, secret_variables

MASK = "***"

_MASKED_NAMES = (
    "sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential|x-goog-signature|x-goog-credential|"
    "awsaccesskeyid|token|access_token|accountkey|client_secret|client_assertion|sharedaccesssignature"
)
"""Names whose values are secret in an address and in any other text."""
_MASKED_NAMES_IN_ADDRESS = "sas|secret|password|passwd|pwd|key|api_?key|auth|code|rlkey"
"""Names whose values are secret in an address; in other text they are ordinary words."""

_WITHOUT_USER = "|".join(name for name, scheme in SCHEME_BY_NAME.items() if not scheme.allows_at_sign)
_USERS = (
    # user:password@host, also after a single slash; a password may contain "/" and "@". "host:8080/a@b" has a port.
    re.compile(r"(?P<keep>\w:/{1,2}[^/\s:@'\"]*?(?::|%3A))(?!\d{1,5}/)[^\s'\"]+(?=@|%40)", re.IGNORECASE),
    # token@host, for schemes in which the part before "@" has no other meaning
    re.compile(rf"(?P<keep>\b(?:{_WITHOUT_USER}):/{{1,2}})[^/\s@'\"?#]+(?=@|%40)", re.IGNORECASE),
)
_ADDRESS_USER = re.compile(
    r"(?P<keep>^(?:(?!file:///)\W*[A-Za-z][\w+.-]+:/*|//)[^/:@]*?(?::|%3A))(?!\d{1,5}/).+(?=@|%40)",
    re.DOTALL | re.IGNORECASE,
)
"""As the first of `_USERS`, for a text that is one address, with any number of slashes and spaces in the password."""
_PATTERNS = (
    *_USERS,
    re.compile(
        rf"(?P<keep>(?:^|[?&;#,\s'\"({{]|%3F|%26|%23)(?:{_MASKED_NAMES})(?:=|%3D))[^&;\s'\"]+",
        re.IGNORECASE,
    ),
    re.compile(rf"(?P<keep>(?:[?&#]|%3F|%26|%23)(?:{_MASKED_NAMES_IN_ADDRESS})(?:=|%3D))[^&;\s'\"]+", re.IGNORECASE),
    re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"(?P<keep>\bdapi)[0-9a-f]{8,}\b"),
    re.compile(r"(?P<keep>\beyJ)[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # a JSON web token
)

_INNER = re.compile(r"(?:accountkey=|sig=|^\w+ +)([^;&\s]+)", re.IGNORECASE)
"""The secret part of a value: of a connection string, a signature, or "Bearer ..."."""

_SECRET_NAMES = re.compile(
    r"secret|token|password|passwd|passphrase|sas|credential|connection_string|account_key|^key$|private|authorization|external_id",
    re.IGNORECASE,
)

_SCHEME = re.compile(r"\W*(?:[A-Za-z][\w+.-]+:/|(?:dbfs|https?|s3a?|gs):)|/Volumes/", re.IGNORECASE)

_SIGNATURE_PARAMETERS = frozenset(
    f"x-{vendor}-{name}"
    for vendor in ("amz", "goog")
    for name in ("algorithm", "credential", "date", "expires", "signature", "signedheaders", "security-token")
) | {"sig", "signature"}  # fmt: skip
_SAS_PARAMETERS = frozenset({
    "sv", "ss", "srt", "sp", "se", "st", "spr", "sip", "sr", "skoid", "sktid", "skt", "ske", "sks", "skv", "saoid",
    "suoid", "scid", "sdd", "ses",
})  # fmt: skip
"""Parameters of Azure's shared access signatures, besides `sig`."""
_URL_SIGNATURE_PARAMETERS = frozenset({"awsaccesskeyid", "googleaccessid", "expires", "policy", "key-pair-id"})
"""Parameters of older S3 and Google signatures and of CloudFront's, besides `Signature`."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text with passwords, signatures, tokens and the literal `secrets` masked. Pure."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: found.group("keep") + MASK, text)
    return text


def redact_address(address: str) -> str:
    """Return the address for messages: without user, password, query and fragment, which may be secret. Pure."""
    redacted = redact(_ADDRESS_USER.sub(rf"\g<keep>{MASK}", address))
    if not _SCHEME.match(redacted):
        return redacted
    place, mark, _ = _split(redacted)
    return f"{place}{mark}{MASK}" if mark else place


def has_login(address: str) -> bool:
    """Return whether an address contains a password, or a user although its scheme has none. Pure."""
    return any(pattern.search(address) for pattern in (*_USERS, _ADDRESS_USER))


def address_secrets(address: str) -> tuple[str, ...]:
    """Return the parts of query and fragment that may be secret, longest first; a library may repeat any of them."""
    place, _, tail = _split(address)
    parts = {tail, *re.split(r"[?#&;]", tail)}
    parts |= {part.partition("=")[2] for part in parts}
    parts |= {unquote(part) for part in parts}
    return tuple(sorted((part for part in parts if len(part) >= 6 and part not in place), key=_longest_first))


def unsigned_address(address: str) -> str:
    """Return an http(s) address without its fragment and the parameters of its signature. Pure.

    The result is the same for every signature by Azure (SAS), S3, Google or CloudFront. Other parameters stay: they may
    identify the file.
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
    """Return the address up to its query or fragment, the mark that follows, and the rest."""
    place, mark, tail = re.match(r"([^?#]*)([?#]?)(.*)", address, re.DOTALL).groups()  # type: ignore[union-attr]
    return place, mark, tail


def _parameter(pair: str) -> str:
    return unquote(pair.partition("=")[0]).lower()


def _longest_first(text: str) -> tuple[int, str]:
    return -len(text), text


def secret_values(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values in options, nested ones too, whose names mark them as secret, longest first. Pure.

    Values of less than 6 characters are omitted: to mask them would garble messages.
    """
    found: set[str] = set()
    _collect(options, found)
    return tuple(sorted(found, key=_longest_first))


def detect_secrets() -> tuple[str, ...]:
    """Return the secrets in the stores' environment variables, and the keys inside connection strings."""
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
            # Any header may be a login, whatever its name.
            _collect(value, found, is_secret=is_secret or str(name).lower() == "headers")
        elif str(name) == "proxy" and isinstance(value, str):
            password = re.match(r"[a-z]+://[^/@]*?:(.*)@", value)  # in an address of a proxy
            found |= {password[1], unquote(password[1])} if password and len(password[1]) >= 6 else set()
        elif named:
            text = value if isinstance(value, str) else getattr(value, "token", None)  # a credentials object
            if isinstance(text, str):
                found |= {part for part in (text, *_INNER.findall(text)) if len(part) >= 6}


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
