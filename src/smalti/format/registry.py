"""From the name of an encoding to the encoding: what MDS knows, and what users have registered."""

import re
from functools import lru_cache

from smalti.errors import SchemaError
from smalti.format.array_headers import MAX_DIMS
from smalti.format.arrays import DTYPE_CODES, NdArray
from smalti.format.custom import find_custom
from smalti.format.encoding import Encoding
from smalti.format.json_values import Json
from smalti.format.pickles import Pickle
from smalti.format.picture_lists import JpegArray, PictureList
from smalti.format.pictures import Jpeg, Pil, Png
from smalti.format.scalars import SCALAR_NAMES, Int, Scalar
from smalti.format.sizes import MAX_FILE_BYTES
from smalti.format.texts import Bytes, Str, StrDecimal, StrFloat, StrInt

_NAMED: dict[str, Encoding] = {
    "bytes": Bytes("bytes"),
    "str": Str("str"),
    "int": Int(),
    "str_int": StrInt("str_int"),
    "str_float": StrFloat("str_float"),
    "str_decimal": StrDecimal("str_decimal"),
    "ndarray": NdArray("ndarray"),
    "pil": Pil("pil"),
    "jpeg": Jpeg("jpeg"),
    "png": Png("png"),
    "list[pil]": PictureList("list[pil]", Pil("pil")),
    "list[jpeg]": PictureList("list[jpeg]", Jpeg("jpeg")),
    "list[png]": PictureList("list[png]", Png("png")),
    "jpeg_array": JpegArray("jpeg_array"),
    "jpegarray": JpegArray("jpegarray"),
    "json": Json("json"),
    **{name: Scalar(name, name) for name in SCALAR_NAMES},
}
_UNSAFE: dict[str, Encoding] = {"pkl": Pickle("pkl")}
_TYPED_ARRAY = re.compile(r"ndarray:([a-z0-9]+)(?::([1-9]\d{0,9}(?:,[1-9]\d{0,9})*))?", re.ASCII)


def parse_encoding(name: str, *, allow_unsafe_types: bool = False) -> Encoding:
    """The encoding called `name`, such as `"int"`, `"jpeg"` or `"ndarray:float32:3,224,224"`.

    Args:
        name: As in an index file.
        allow_unsafe_types: Whether pickled columns, which run code when they are read, are wanted.

    Raises:
        SchemaError: Unknown, or unsafe and not allowed.
    """
    if not isinstance(name, str):
        raise SchemaError(f"the name of an encoding must be text, found {type(name).__name__}.", encoding=name)
    if name in _UNSAFE:
        if allow_unsafe_types:
            return _UNSAFE[name]
        raise SchemaError(
            f"encoding {name!r} is refused: unpickling runs code from the data. Write the column as json or ndarray; "
            "or pass `allow_unsafe_types=True` to read data whose writer you trust.",
            encoding=name,
        )
    # Built-in names first: whoever registers one of those later changes nothing.
    return _built_in(name) or find_custom(name) or _unknown(name)


@lru_cache(maxsize=1024)
def _built_in(name: str) -> Encoding | None:
    if name in _NAMED:
        return _NAMED[name]
    match = _TYPED_ARRAY.fullmatch(name)
    return None if match is None else _typed_array(name, match)


def _typed_array(name: str, match: re.Match[str]) -> Encoding:
    if match[1] not in DTYPE_CODES:
        raise SchemaError(
            f"encoding {name!r:.80}: element type must be one of {', '.join(DTYPE_CODES)}.", encoding=name
        )
    shape = tuple(map(int, match[2].split(","))) if match[2] else None
    encoding = NdArray(name, match[1], shape)
    if len(shape or ()) > MAX_DIMS or (encoding.size or 0) > MAX_FILE_BYTES:
        raise SchemaError(f"encoding {name!r:.80}: at most 63 axes and 4 GiB, the size of a shard.", encoding=name)
    return encoding


def _unknown(name: str) -> Encoding:
    raise SchemaError(
        f"unknown encoding {name!r:.80}: expected one of {', '.join(sorted(_NAMED))}, ndarray:DTYPE[:d0,d1,...], or "
        "one that `register_encoding` has been told of in this process.",
        encoding=name,
    )
