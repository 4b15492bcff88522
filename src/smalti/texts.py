"""Values as people read them: numbers of bytes, and texts without what a terminal interprets."""

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


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

    They are escaped, except for those in `keep`.
    """
    return "".join(
        letter if letter.isprintable() or letter in keep else _ESCAPES.get(letter, f"\\u{ord(letter):04x}")
        for letter in text
    )
