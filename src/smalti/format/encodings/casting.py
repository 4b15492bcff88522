"""Lossless changes of the number type of an array; refused where a value would change. Pure numpy."""

from typing import Any

import numpy as np

from smalti.errors import SchemaError
from smalti.format.encodings.encoding import Array


def little_endian(dtype: Any) -> "np.dtype[Any]":
    """Return the dtype with its bytes in the order that MDS stores."""
    found: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    return found


def cast_exact(values: Array, dtype: Any) -> Array:
    """Return the same numbers as `dtype`: casting back gives equal values, with NaN and the sign of zero kept.

    Args:
        values: Booleans, integers or floats of any shape and byte order.
        dtype: The target integer or float type.

    Raises:
        SchemaError: Not numbers, or a number that `dtype` cannot hold exactly; `row` is the first such index along the
            first axis.
    """
    wanted = little_endian(dtype)
    if values.dtype == wanted:
        return values
    if values.dtype.kind not in "biuf":
        raise SchemaError(f"expected numbers for {wanted.name}, found {values.dtype.name}.", row=0)
    with np.errstate(all="ignore"):
        if values.dtype.kind == "b":
            return values.astype(wanted)
        if values.dtype.kind in "iu":
            out, good = _from_integers(values, wanted)
        else:
            out, good = _from_floats(values, wanted)
    if not good.all():
        row = int(np.argmin(good.reshape(len(good), -1).all(axis=1))) if good.ndim else 0
        raise SchemaError(
            f"a value of type {values.dtype.name} cannot be stored as {wanted.name} without loss; change the column's "
            "encoding, or cast explicitly before writing.",
            row=row,
        )
    return out


def _from_integers(values: Array, wanted: "np.dtype[Any]") -> tuple[Array, Array]:
    out = values.astype(wanted)
    if wanted.kind in "iu":
        # A number that wrapped around casts back unchanged, but its sign differs in between.
        return out, np.asarray((out.astype(values.dtype) == values) & ((out < 0) == (values < 0)))
    return out, _equal_as_integers(out, values)


def _from_floats(values: Array, wanted: "np.dtype[Any]") -> tuple[Array, Array]:
    out = values.astype(wanted)
    if wanted.kind == "f":
        return out, np.asarray((out.astype(values.dtype) == values) | np.isnan(values))
    return out, _equal_as_integers(values, out) & ~((values == 0) & np.signbit(values))


def _equal_as_integers(floats: Array, integers: Array) -> Array:
    """Compare floats with integers exactly; a float outside the integer type's range is not equal."""
    limits = np.iinfo(integers.dtype)
    # The bounds are powers of two, exact in float64; casting a float beyond them is undefined and differs by machine.
    wide = floats.astype(np.float64) if floats.dtype.itemsize < 8 else floats
    inside = np.isfinite(wide) & (wide >= float(limits.min)) & (wide < float(limits.max + 1))
    whole = np.where(inside, wide, 0).astype(integers.dtype)
    return np.asarray(inside & (whole == integers) & (whole.astype(wide.dtype) == wide))
