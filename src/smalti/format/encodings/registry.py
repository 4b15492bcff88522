"""The registry of encodings: from a name in an index file to the encoding, built in or registered by the user.

No encoding is ever discovered by itself. How to write one: docs/encodings.md.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from threading import Lock

from smalti.errors import SchemaError
from smalti.format.encodings.encoding import Encoding
from smalti.format.encodings.images import ImageList, Jpeg, Pil, Png
from smalti.format.encodings.numbers import DTYPE_CODES, MAX_DIMS, SCALAR_NAMES, Int, NdArray, Scalar
from smalti.format.encodings.text import Bytes, Json, Pickle, Str, StrDecimal, StrFloat, StrInt
from smalti.format.sizes import MAX_FILE_BYTES

MakeEncoding = Callable[[str, str], Encoding]
"""Makes an encoding from the whole name in the index file and the text after its first colon (or empty)."""

_BUILT_IN: dict[str, Encoding] = {
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
    "list[pil]": ImageList("list[pil]", Pil("pil")),
    "list[jpeg]": ImageList("list[jpeg]", Jpeg("jpeg")),
    "list[png]": ImageList("list[png]", Png("png")),
    **{name: ImageList(name, Jpeg("jpeg"), reserved=b"", min_images=1) for name in ("jpeg_array", "jpegarray")},
    "json": Json("json"),
    **{name: Scalar(name, name) for name in SCALAR_NAMES},
}
"""Every encoding of MDS without parameters, by name; a new one is added here, and nowhere else."""
_UNSAFE: dict[str, Encoding] = {"pkl": Pickle("pkl")}
_RESERVED = frozenset({*_BUILT_IN, *_UNSAFE, "float"})  # names of MDS; `float` is a type of text shards
_OTHER_NAMES = {
    "integer": "int", "string": "str", "text": "str", "float": "float32", "double": "float64", "bool": "uint8",
    "boolean": "uint8", "binary": "bytes", "image": "jpeg", "jpg": "jpeg", "array": "ndarray", "tensor": "ndarray",
    "decimal": "str_decimal", "pickle": "pkl",
}  # fmt: skip
"""The encoding that is meant by usual names of types."""
_TYPED_ARRAY = re.compile(r"ndarray:([a-z0-9]+)(?::([1-9]\d{0,9}(?:,[1-9]\d{0,9})*))?", re.ASCII)
_FAMILY = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)
_MAX_FAMILY_CHARS = 64
_MAX_NAME_CHARS = 1024

_registered: dict[str, MakeEncoding] = {}
"""Factories of users; those under names of MDS were registered with `override`."""
_num_replaced = 0
_counting = Lock()


def register_encoding(name: str, make: MakeEncoding, *, override: bool = False) -> None:
    """Make `name`, and every `name:parameters`, an encoding of this process; thread-safe.

    Args:
        name: Lower-case letters, digits, `_`, `.` and `-`, starting with a letter, at most 64 characters.
        make: Called with the whole name and with the text after the first colon (empty without one); returns the
            encoding, whose `name` must be the whole name. A class whose constructor takes the two will do.
        override: Whether to replace another factory, or an encoding of MDS itself, and to allow any name without a
            colon. Columns of that name are then written and read by `make` alone, in this process: other programs
            need the same encoding to read them.

    Raises:
        SchemaError: The name is one of MDS's own or malformed, or another factory has it. Registering the same factory
            again, as a module that is imported twice or a notebook cell that is run twice does, is allowed: the newest
            definition counts.

    Examples:
        >>> class Words(Encoding):
        ...     def __init__(self, name, parameters):
        ...         super().__init__(name)
        ...     def encode(self, value):
        ...         return " ".join(value).encode()
        ...     def decode(self, data):
        ...         return data.decode().split(" ")
        >>> register_encoding("words", Words)
        >>> with MDSWriter(out="s3://bucket/set", columns={"tokens": "words"}) as writer:
        ...     writer.write({"tokens": ["a", "cat"]})
        >>> smalti.open_dataset("s3://bucket/set")[0]
        {'tokens': ['a', 'cat']}
        >>> unregister_encoding("words")
    """
    if override:
        if not 1 <= len(name) <= _MAX_FAMILY_CHARS or ":" in name:
            raise SchemaError(
                f"encoding {name!r:.80}: expected a name of 1 to {_MAX_FAMILY_CHARS} characters without a colon, which "
                "begins the parameters."
            )
        _registered[name] = make
        _count_replacement()
        return
    if not _FAMILY.fullmatch(name):
        raise SchemaError(
            f"encoding {name!r:.80}: the name of an encoding is lower-case letters, digits, `_`, `.` and `-`, starts "
            "with a letter and has at most 64 characters.",
            encoding=name,
        )
    if name in _RESERVED:
        raise SchemaError(f"encoding {name!r} is MDS's own and cannot be replaced; choose another name.", encoding=name)
    known = _registered.setdefault(name, make)
    if known is make:
        return
    if _origin(known) is None or _origin(known) != _origin(make):
        raise SchemaError(
            f"encoding {name!r} is registered already, by {_describe(known)}; choose another name than for "
            f"{_describe(make)}, or register one of the two.",
            encoding=name,
        )
    _registered[name] = make
    _count_replacement()


def unregister_encoding(name: str) -> None:
    """Remove the factory of `name`; an encoding of MDS itself takes its place again. A no-op without a factory.

    Args:
        name: Name that was registered.
    """
    if _registered.pop(name, None) is not None:
        _count_replacement()


def _count_replacement() -> None:
    global _num_replaced  # noqa: PLW0603
    with _counting:
        _num_replaced += 1


def num_replaced() -> int:
    """Return how often a factory was replaced by a newer definition; part of the key for caches of encodings."""
    return _num_replaced


def _find_custom(name: str) -> Encoding | None:
    """Return the encoding for `name` that a factory of the user makes, or None.

    Raises:
        SchemaError: The factory refuses the name, or returns something that cannot be used.
    """
    make = _registered.get(name.partition(":")[0]) if _registered else None
    return None if make is None or len(name) > _MAX_NAME_CHARS else _make_custom(name, make)


@lru_cache(maxsize=256)
def _make_custom(name: str, make: MakeEncoding) -> Encoding:
    try:
        encoding = make(name, name.partition(":")[2])
    except Exception as error:  # what a factory raises is open
        raise SchemaError(f"encoding {name!r:.80} is refused by its factory: {error}", encoding=name) from error
    if fault := _find_fault(encoding, name):
        raise SchemaError(
            f"encoding {name!r:.80}: {_describe(make)} returned no usable encoding: {fault}.", encoding=name
        )
    return encoding


def _find_fault(encoding: object, name: str) -> str | None:
    if not isinstance(encoding, Encoding):
        return f"expected a smalti.format.Encoding, found {type(encoding).__name__}"
    # `getattr` with defaults: a constructor may not have called Encoding's own.
    found, size = getattr(encoding, "name", None), getattr(encoding, "size", "nothing")
    if found != name:
        return f"expected an encoding of that name, found {found!r:.80}"
    if size is not None and not (type(size) is int and 1 <= size <= MAX_FILE_BYTES):
        return f"expected a size of 1 byte to 4 GiB, or None, found {size!r:.80}"
    return None


def _origin(make: MakeEncoding) -> tuple[str, str] | None:
    """Return where the factory is defined; None if that does not identify it (a lambda or a local function)."""
    name = getattr(make, "__qualname__", "<")
    return None if "<" in name else (make.__module__, name)


def _describe(make: MakeEncoding) -> str:
    return f"{getattr(make, '__module__', '?')}.{getattr(make, '__qualname__', type(make).__name__)}"


def parse_encoding(name: str, *, allow_unsafe_types: bool = False) -> Encoding:
    """Return the encoding called `name`, such as `"int"`, `"jpeg"` or `"ndarray:float32:3,224,224"`.

    Args:
        name: As in an index file.
        allow_unsafe_types: Whether pickled columns, which run code when they are read, are allowed.

    Raises:
        SchemaError: Unknown, or unsafe and not allowed.
    """
    if not isinstance(name, str):
        raise SchemaError(f"the name of an encoding must be text, found {type(name).__name__}.", encoding=name)
    if (found := _find_custom(name)) is not None:
        return found
    if name in _UNSAFE:
        if allow_unsafe_types:
            return _UNSAFE[name]
        raise SchemaError(
            f"encoding {name!r} is refused: unpickling runs code from the data. Write the column as json or ndarray; "
            "or, for data whose writer you trust, give `allow_unsafe_types=True` to MDSWriter, StreamingDataset or "
            "LocalDataset.",
            encoding=name,
            is_unsafe=True,
        )
    return _find_built_in(name) or _unknown(name)


def is_unsafe(name: str) -> bool:
    """Return whether values of this encoding may run code when they are read."""
    return name in _UNSAFE and _find_custom(name) is None


def built_in_encoding(name: str) -> Encoding:
    """Return MDS's own encoding called `name`, also unsafe ones and those that were overridden.

    Raises:
        SchemaError: There is none.
    """
    return _UNSAFE.get(name) or _find_built_in(name) or _unknown(name)


@lru_cache(maxsize=1024)
def _find_built_in(name: str) -> Encoding | None:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    match = _TYPED_ARRAY.fullmatch(name)
    if match is None:
        return None
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
    near = get_close_matches(name[:_MAX_FAMILY_CHARS].lower(), [*_BUILT_IN, *_OTHER_NAMES], 1)
    hint = f"did you mean {_OTHER_NAMES.get(near[0], near[0])!r}? It must be" if near else "expected"
    raise SchemaError(
        f"unknown encoding {name!r:.80}: {hint} one of {', '.join(sorted(_BUILT_IN))}, ndarray:DTYPE[:d0,d1,...], or "
        "one that was registered in this process with `register_encoding`.",
        encoding=name,
    )
