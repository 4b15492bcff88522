"""The encodings of Python objects: `json`, and `pkl` for data of other writers.

JSON is written strictly and read as MosaicML reads it, within limits of size and depth. Reading a pickle runs code that
it contains; nothing else in Smalti unpickles data.
"""

import json
import pickle
import pickletools
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.encodings.encoding import Encoding, kind_of
from smalti.format.json_fields import finite_float, is_deeper_than, refuse_constant, unique_keys

_MAX_BYTES = 1 << 26
"""A parsed value takes up to thirty times the memory of its text: 64 MiB of text are 2 GB."""
_MAX_DEPTH = 512
"""Levels of nesting; Python's own parser fails somewhere near 1000, depending on the stack of its caller."""


class Json(Encoding):
    """Anything that JSON can hold, without NaN or infinities, and with texts that UTF-8 can hold."""

    def encode(self, value: Any) -> bytes:
        """Return JSON text; an array becomes nested lists; bytes are accepted if they are strict JSON already."""
        try:
            if isinstance(value, bytes):
                parsed = _parse(
                    value, parse_constant=refuse_constant, parse_float=finite_float, object_pairs_hook=unique_keys
                )
                _refuse_surrogates(value, parsed)
                return value
            if isinstance(value, np.ndarray):
                value = value.tolist()
            data = json.dumps(value, allow_nan=False).encode("ascii")
            if _parse(data) != value:
                _explain_difference(value, "$")
            _refuse_surrogates(data, value)
        except SchemaError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)  # without the content
            raise SchemaError(f"a value that strict JSON cannot hold: {reason}") from error
        return data

    def decode(self, data: bytes) -> Any:
        """Return what `json.loads` returns, so NaN is accepted where other writers stored it."""
        return _parse(data)


def _parse(data: bytes, **hooks: Any) -> Any:
    if len(data) > _MAX_BYTES:
        raise FormatError(f"{len(data)} bytes of JSON are more than the {_MAX_BYTES} allowed.")
    try:
        value = json.loads(data.decode("utf-8"), **hooks)
    except RecursionError as error:
        raise _too_deep() from error
    # Cheap pre-check: only values with many brackets are walked.
    if data.count(b"[") + data.count(b"{") > _MAX_DEPTH and is_deeper_than(value, _MAX_DEPTH):
        raise _too_deep()
    return value


def _refuse_surrogates(data: bytes, value: Any) -> None:
    """Raise SchemaError if a text of a JSON value, which has this JSON text, has an unpaired surrogate."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise SchemaError(
            "a value that strict JSON cannot hold: a text has an unpaired surrogate, which UTF-8 cannot hold"
        ) from error


def _too_deep() -> FormatError:
    return FormatError(f"JSON that is nested more than {_MAX_DEPTH} levels deep.")


def _explain_difference(value: Any, path: str) -> None:
    """Raise if JSON changed more than tuples into lists: keys that are not text, or numbers that do not survive."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise SchemaError(f"the key of an object at {path} is {kind_of(key)}, and JSON would make it text.")
            _explain_difference(item, f"{path}.*")
    elif isinstance(value, list | tuple):
        for item in value:
            _explain_difference(item, f"{path}[*]")
    elif json.loads(json.dumps(value)) != value:
        raise SchemaError(f"{kind_of(value)} at {path} would be changed by JSON.")


class Pickle(Encoding):
    """Anything that Python can pickle; only available with `allow_unsafe_types=True`."""

    def encode(self, value: Any) -> bytes:
        """Return a pickle of Python's default protocol; bytes are accepted if they are a pickle, as MosaicML does."""
        if isinstance(value, bytes):
            return _checked(value)
        try:
            return pickle.dumps(value)
        except Exception as error:  # what a class's own methods raise is open
            raise SchemaError(f"{kind_of(value)} cannot be pickled: {type(error).__name__}.") from error

    def decode(self, data: bytes) -> Any:
        """Return the unpickled value; code in `data` runs."""
        try:
            return pickle.loads(data)  # noqa: S301 - the caller passed `allow_unsafe_types=True`
        except Exception as error:  # damaged or foreign pickles raise anything
            raise FormatError(f"unpickling it raised {type(error).__name__}.") from error


def _checked(data: bytes) -> bytes:
    last = 0
    try:
        for _, _, place in pickletools.genops(data):  # stops at the opcode that ends a pickle
            last = place or 0
    except Exception as error:  # for damaged data it raises more than it documents
        raise SchemaError("expected an object, or the bytes of a pickle; these bytes are not a pickle.") from error
    if last + 1 != len(data):
        raise SchemaError("expected an object, or the bytes of a pickle; something follows its end.")
    return data
