"""A quick yes for JPEG files that begin like others: files of one camera or program share their headers, byte for byte.

The rules themselves are those of `picture_headers`; a header is held against them once.
"""

from functools import lru_cache

from smalti.format.picture_headers import check_jpeg

HEAD_BYTES = 1024
"""How much of a file is looked at; a longer header, with a preview in it for example, gets no quick yes."""
END_MARK = b"\xff\xd9"
_SCAN_MARK = b"\xff\xda"


def begins_well(head: bytes) -> bool:
    """Whether a file with this beginning, and with `END_MARK` as its end, is whole; a no may be wrong.

    Args:
        head: The first `HEAD_BYTES` of the file, or all of it; the end mark is not among the bytes up to the scan.
    """
    scan = head.find(_SCAN_MARK)
    return scan >= 0 and _is_good(head[: scan + 4])


@lru_cache(maxsize=1024)
def _is_good(head: bytes) -> bool:
    # A scan mark inside another segment ends `head` too early for the check, which then finds no scan.
    return check_jpeg(head + END_MARK) is None
