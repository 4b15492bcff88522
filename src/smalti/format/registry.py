"""From the name of an encoding to the encoding: the list of what can be read and written."""

import re
from functools import lru_cache

from smalti.errors import SchemaError
from smalti.format.arrays import DTYPE_CODES, NdArray
from smalti.format.encoding import Encoding
from smalti.format.pictures import Jpeg, Pil, Png
from smalti.format.scalars import SCALAR_NAMES, Int, Scalar
from smalti.format.sizes import MAX_FILE_BYTES
from smalti.format.texts import Bytes, Json, Str, StrDecimal, StrFloat, StrInt

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
    "json": Json("json"),
    **{name: Scalar(name, name) for name in SCALAR_NAMES},
}
_TYPED_ARRAY = re.compile(r"ndarray:([a-z0-9]+)(?::([1-9]\d{0,9}(?:,[1-9]\d{0,9})*))?", re.ASCII)
_NOT_YET = {"jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]"}


@lru_cache(maxsize=1024)
def parse_encoding(name: str, *, allow_unsafe_types: bool = False) -> Encoding:
    """The encoding called `name`, such as `"int"`, `"jpeg"` or `"ndarray:float32:3,224,224"`.

    Args:
        name: As in an index file.
        allow_unsafe_types: Whether pickled columns are wanted; this version has no decoder for them either way.

    Raises:
        SchemaError: Unknown, unsafe, or known to MDS and not to this version.
    """
    if isinstance(name, str):
        if name in _NAMED:
            return _NAMED[name]
        if match := _TYPED_ARRAY.fullmatch(name):
            return _typed_array(name, match)
    raise SchemaError(_refusal(name, allow_unsafe_types=allow_unsafe_types), encoding=name)


def _typed_array(name: str, match: re.Match[str]) -> Encoding:
    if match[1] not in DTYPE_CODES:
        raise SchemaError(f"encoding {name!r}: element type must be one of {', '.join(DTYPE_CODES)}.", encoding=name)
    shape = tuple(map(int, match[2].split(","))) if match[2] else None
    encoding = NdArray(name, match[1], shape)
    if len(shape or ()) > 63 or (encoding.size or 0) > MAX_FILE_BYTES:
        raise SchemaError(f"encoding {name!r}: at most 63 axes and 4 GiB, the size of a shard.", encoding=name)
    return encoding


def _refusal(name: object, *, allow_unsafe_types: bool) -> str:
    if name == "pkl":
        if allow_unsafe_types:
            return "encoding 'pkl' is not supported by this version: it holds no pickle decoder."
        return "encoding 'pkl' is refused: unpickling runs code from the data; write the column as json or ndarray."
    if name in _NOT_YET:
        return f"encoding {name!r} is not supported by this version."
    return f"unknown encoding {name!r}: expected one of {', '.join(sorted(_NAMED))} or ndarray:DTYPE[:d0,d1,...]."
