"""Values as people read them: numbers of bytes, and texts without what a terminal interprets."""

import json

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def byte_count(num_bytes: float) -> str:
    """Return a number of bytes as people read it, in units of 1024: `1.5 MiB`."""
    if num_bytes < 1024:
        return f"{num_bytes:,.0f} bytes"
    value = float(num_bytes)
    for unit in _UNITS:
        value /= 1024
        if value < 999.95 or unit == _UNITS[-1]:
            break
    return f"{value:,.1f} {unit}"


def printable(text: str, *, keep: str = "") -> str:
    """Return a text without characters that a terminal interprets: controls, and those that change the direction.

    They are escaped as in JSON, except for those in `keep`; so are bytes of a file's name that are not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else json.dumps(each)[1:-1] for each in text)
