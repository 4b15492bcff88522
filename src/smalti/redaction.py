"""Redaction of secrets in text, and storage options whose representation shows their names only.

Every message of a `SmaltiError` and every message of the command line passes `redact_message`; addresses pass
`redact_address` before they are shown or recorded. Secrets of the environment and of the errors of client libraries
are in `smalti.storage.redact`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

HELP_PAGE = "https://github.com/smalti/smalti/blob/main/docs/troubleshooting.md"
"""The page about errors. It has a heading for each class, whose anchor is the name in lower case."""
MASK = "***"
MIN_SECRET = 6
"""Shortest text that is masked literally: to mask shorter ones would garble messages."""

_MASKED_NAMES = (
    "sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential|x-goog-signature|x-goog-credential|"
    "awsaccesskeyid|(?:access_?|session_?|sas_?)?token|(?:account|access|secret|private|api)_?key|secret_access_key|"
    "(?:client_?)?secret|client_assertion|sharedaccesssignature|password|passwd|passphrase|pwd"
)
"""Names whose values are secret in an address and in any other text."""
_MASKED_NAMES_IN_ADDRESS = "sas|key|auth|code|rlkey|credential|jsessionid"
"""Names whose values are secret in an address; in other text they are ordinary words."""

_allows_at_sign: dict[str, bool] = {}


def declare_schemes(schemes: Mapping[str, bool]) -> None:
    """Declare for schemes whether a text before "@" may be something else than a login; it is one in all others."""
    _allows_at_sign.update(schemes)


# user:password@host, also after a single slash; a password may contain "/" and "@". "host:8080/a@b" has a port.
_PASSWORD = re.compile(r"(?P<keep>\w:/{1,2}[^/\s:@'\"]*?(?::|%3A))(?!\d{1,5}/)[^\s'\"]{1,4096}(?=@|%40)", re.IGNORECASE)
_USER = re.compile(r"(?P<keep>\b(?P<scheme>[A-Za-z][\w+.-]*):(?P<slashes>/{1,2}))[^/\s@'\"?#]+(?=@|%40)", re.IGNORECASE)
_ADDRESS_USER = re.compile(
    r"(?P<keep>^(?:(?!file:///)\W*[A-Za-z][\w+.-]+:/*|//)[^/:@]*?(?::|%3A))(?!\d{1,5}/).+(?=@|%40)",
    re.DOTALL | re.IGNORECASE,
)
"""As `_PASSWORD`, for a text that is one address, with any number of slashes and spaces in the password."""
_VALUE = r"[^&;\s'\"]*[^&;\s'\":,)]"
"""A value, without the punctuation of a sentence behind it: what is redacted twice stays as it is."""
_PATTERNS = (
    re.compile(rf"(?P<keep>(?:^|[?&;#,\s'\"({{]|%3F|%26|%23|%3B)(?:{_MASKED_NAMES})(?:=|%3D)){_VALUE}", re.IGNORECASE),
    re.compile(rf"(?P<keep>(?:[?&#;]|%3F|%26|%23|%3B)(?:{_MASKED_NAMES_IN_ADDRESS})(?:=|%3D)){_VALUE}", re.IGNORECASE),
    # As Python and JSON show arguments and mappings; a short value, such as token='anon', is a word.
    re.compile(rf"(?P<keep>\b(?:\w*_)?(?:{_MASKED_NAMES})['\"]?\s*[:=]\s*b?['\"])[^'\"]{{6,}}", re.IGNORECASE),
    re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"(?P<keep>\bdapi)[0-9a-f]{8,}\b"),
    re.compile(r"(?P<keep>\beyJ)[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # a JSON web token
)
_TAIL = re.compile(
    rf"(?P<keep>\b(?!file:|{re.escape(HELP_PAGE)}#)[A-Za-z][\w+.-]+:/[^\s'\"?#]*[?#])[^\s'\"]*[^\s'\":,;.)]",
    re.IGNORECASE,
)
"""Query and fragment of an address in a text, except the anchors of `HELP_PAGE`."""

_INNER = re.compile(r"(?:accountkey=|sig=|^\w+ +)([^;&\s]+)", re.IGNORECASE)
"""The secret part of a value: of a connection string, a signature, or "Bearer ..."."""
_SECRET_NAMES = re.compile(
    r"secret|token|password|passwd|passphrase|sas|credential|connection_string|account_key|^key$|private|authorization|external_id",
    re.IGNORECASE,
)
_PASSWORD_OF_URL = re.compile(r"[a-z]+://[^/@]*?:(.*)@", re.IGNORECASE)
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


class HiddenOptions(dict[str, Any]):
    """Storage options that show their names and no values wherever they are printed or logged."""

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {MASK!r}" for name in self) + "}"


def hide_options(holder: Any) -> None:
    """Replace the storage options in the attributes of an object by `HiddenOptions` with the same content.

    For the `__post_init__` of dataclasses: their representation and the result of `dataclasses.asdict` are logged.
    """
    for name, value in vars(holder).items():
        if name.endswith("storage_options") and isinstance(value, Mapping):
            object.__setattr__(holder, name, HiddenOptions(value))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text with passwords, signatures, tokens and the literal `secrets` masked."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    if "@" in text or "%40" in text:  # otherwise the search would take the square of the length
        text = _PASSWORD.sub(_keep, text)
        text = _USER.sub(lambda match: _keep(match) if _is_login(match) else match[0], text)
    for pattern in _PATTERNS:
        text = pattern.sub(_keep, text)
    return text


def redact_value(name: str, value: Any) -> Any:
    """Return the value of a named setting for a record: masked if the name is that of a secret, such as `api_key`."""
    if not isinstance(value, str):
        return value
    example = f"{name}='a value'"
    return redact_message(value) if redact(example) == example else MASK


def redact_message(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a message with everything masked that `redact` masks, and the queries and fragments of addresses."""
    return _TAIL.sub(_keep, redact(text, secrets))


def redact_address(address: str) -> str:
    """Return the address for messages: without user, password, query and fragment, which may be secret."""
    redacted = redact(_ADDRESS_USER.sub(_keep, address))
    if not _SCHEME.match(redacted):
        return redacted
    place, mark, _ = _split(redacted)
    return f"{place}{mark}{MASK}" if mark else place


def has_login(address: str) -> bool:
    """Return whether an address contains a password, or a user although its scheme has none."""
    if _PASSWORD.search(address) or _ADDRESS_USER.search(address):
        return True
    return any(map(_is_login, _USER.finditer(address)))


def address_secrets(address: str) -> tuple[str, ...]:
    """Return the parts of query and fragment that may be secret, longest first; a library may repeat any of them."""
    place, _, tail = _split(address)
    parts = {tail, *re.split(r"[?#&;]", tail)}
    parts |= {part.partition("=")[2] for part in parts}
    parts |= {unquote(part) for part in parts}
    return _longest_first(part for part in parts if len(part) >= MIN_SECRET and part not in place)


def word_secrets(words: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of a command line that may be secret, longest first.

    These are the parts of queries and fragments of addresses, logins before "@", and what follows "=" or ":" after a
    name that marks a value as secret.
    """
    found: set[str] = set()
    for word in words:
        if _SCHEME.match(word):
            found.update(address_secrets(word))
            if has_login(word):
                login = word.partition(":")[2].lstrip("/").rpartition("@")[0]
                found |= {part for part in (login, login.partition(":")[2]) if len(part) >= MIN_SECRET}
        name, _, value = re.match(r"([^=:]*)([=:]?)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
        if len(value) >= MIN_SECRET and _SECRET_NAMES.search(name):
            found.add(value)
    return _longest_first(found)


def unsigned_address(address: str) -> str:
    """Return an http(s) address without its fragment and the parameters of its signature.

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


def secret_values(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values in options, nested ones too, whose names mark them as secret, longest first.

    Values of less than `MIN_SECRET` characters are omitted.
    """
    found: set[str] = set()
    _collect(options, found)
    return _longest_first(found)


def inner_secrets(value: str) -> tuple[str, ...]:
    """Return a value, and the keys inside it if it is a connection string, that are long enough to be masked."""
    return tuple(part for part in (value, *_INNER.findall(value)) if len(part) >= MIN_SECRET)


def _collect(options: Mapping[str, Any], found: set[str], *, is_secret: bool = False) -> None:
    for name, value in options.items():
        named = is_secret or bool(_SECRET_NAMES.search(str(name)))
        if isinstance(value, Mapping):
            # Any header may be a login, whatever its name.
            _collect(value, found, is_secret=is_secret or str(name).lower() == "headers")
        elif isinstance(value, str) and (password := _PASSWORD_OF_URL.match(value)):  # of a proxy or a server
            found |= {password[1], unquote(password[1])} if len(password[1]) >= MIN_SECRET else set()
        elif named:
            text = value if isinstance(value, str) else getattr(value, "token", None)  # a credentials object
            if isinstance(text, str):
                found.update(inner_secrets(text))


def _is_login(user: "re.Match[str]") -> bool:
    """Return whether what is before "@" is a login. One slash is a login in declared schemes only."""
    return not _allows_at_sign.get(user["scheme"].lower(), len(user["slashes"]) < 2)


def _keep(match: "re.Match[str]") -> str:
    return match["keep"] + MASK


def _split(address: str) -> tuple[str, str, str]:
    """Return the address up to its query or fragment, the mark that follows, and the rest."""
    place, mark, tail = re.match(r"([^?#]*)([?#]?)(.*)", address, re.DOTALL).groups()  # type: ignore[union-attr]
    return place, mark, tail


def _parameter(pair: str) -> str:
    return unquote(pair.partition("=")[0]).lower()


def _longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(texts, key=lambda text: (-len(text), text)))
