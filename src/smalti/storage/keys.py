"""Rules for keys: what may name an object, and how prefixes and keys are joined; pure, no I/O."""

from smalti.errors import StoreError

MAX_KEY_BYTES = 1024
"""Longest key that S3, GCS and Azure all accept."""


def check_key(key: str, *, allow_root: bool = False) -> str:
    """The key itself, when it is relative, has no empty, `.` or `..` part and no NUL, and is not too long.

    Raises:
        StoreError: the key could leave the store's root, or no store would take it.
    """
    if key == "" and allow_root:
        return key
    parts = key.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\0" in key or "\\" in key:
        raise StoreError(
            f"key {key!r} is not allowed: expected a relative, '/'-separated name without empty, '.' or '..' "
            "parts, "
            "NUL or backslash",
            key=key,
        )
    if len(key.encode("utf-8", "surrogateescape")) > MAX_KEY_BYTES:
        raise StoreError(
            f"key {key[:80]!r}... is longer than {MAX_KEY_BYTES} bytes, which object stores refuse", key=key
        )
    return key


def join_key(prefix: str, key: str) -> str:
    """`prefix/key`; either may be empty."""
    return f"{prefix}/{key}" if prefix and key else prefix or key


def folder_of(prefix: str) -> str:
    """The checked prefix with at most one trailing slash removed; "" is the root."""
    return check_key(prefix.removesuffix("/"), allow_root=True)
