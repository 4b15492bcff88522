"""The `pkl` encoding of old data: reading it runs code that stands in it. Nothing else in Smalti unpickles data."""

import pickle
import pickletools
from typing import Any

from smalti.errors import FormatError, SchemaError
from smalti.format.encoding import Encoding, kind_of


class Pickle(Encoding):
    """Whatever Python can pickle; handed out only where `allow_unsafe_types=True` was asked for."""

    def encode(self, value: Any) -> bytes:
        """A pickle of Python's default protocol; bytes are taken as a pickle where they are one, as MosaicML does."""
        if isinstance(value, bytes):
            return _checked(value)
        try:
            return pickle.dumps(value)
        except Exception as error:  # what a class's own methods raise is open
            raise SchemaError(f"{kind_of(value)} cannot be pickled: {type(error).__name__}.") from error

    def decode(self, data: bytes) -> Any:
        """The unpickled value; code in `data` runs."""
        try:
            return pickle.loads(data)  # noqa: S301 - the caller asked for it by name
        except Exception as error:  # damaged or foreign pickles raise anything
            raise FormatError(f"unpickling it raised {type(error).__name__}.") from error


def _checked(data: bytes) -> bytes:
    last = 0
    try:
        for _, _, place in pickletools.genops(data):  # up to the mark that ends a pickle
            last = place or 0
    except Exception as error:  # for damaged data it raises more than it documents
        raise SchemaError("expected an object, or the bytes of a pickle; these bytes are none.") from error
    if last + 1 != len(data):
        raise SchemaError("expected an object, or the bytes of a pickle; something follows its end.")
    return data
