"""Columns for property tests: an encoding, values for it, and the Arrow type in which Spark delivers them."""

import math
from decimal import Decimal
from io import BytesIO

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from PIL import Image

INT_BITS = {"int": 64, "int8": 8, "int16": 16, "int32": 32, "int64": 64}
UINT_BITS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)


def _floats(bits):
    return st.floats(width=bits)


def image_bytes(kind, size=(3, 2), color=7):
    out = BytesIO()
    Image.new("L", size, color).save(out, kind)
    return out.getvalue()


SCALARS = {
    **{
        name: (st.integers(-(2 ** (n - 1)), 2 ** (n - 1) - 1), getattr(pa, f"int{n}")()) for name, n in INT_BITS.items()
    },
    **{name: (st.integers(0, 2**n - 1), getattr(pa, name)()) for name, n in UINT_BITS.items()},
    "float32": (_floats(32), pa.float32()),
    "float64": (_floats(64), pa.float64()),
}
OTHERS = {
    "bytes": (st.binary(max_size=20), pa.binary()),
    "str": (text, pa.string()),
    "str_int": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "str_float": (_floats(64), pa.float64()),
    "str_decimal": (st.decimals(-999, 999, places=3).map(Decimal), pa.decimal128(12, 3)),
    "json": (st.lists(st.integers(-5, 5), max_size=3), pa.list_(pa.int32())),
    "ndarray:int32": (st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=300), pa.list_(pa.int32())),
    "ndarray:float64": (st.lists(_floats(64), min_size=1, max_size=4), pa.large_list(pa.float64())),
    "ndarray:uint8:3": (st.lists(st.integers(0, 255), min_size=3, max_size=3), pa.list_(pa.uint8(), 3)),
    "ndarray:int16:2,2": (
        st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=2, max_size=2),
        pa.list_(pa.list_(pa.int16())),
    ),
    "jpeg": (st.integers(0, 255).map(lambda c: image_bytes("JPEG", color=c)), pa.binary()),
    "png": (st.integers(1, 5).map(lambda w: image_bytes("PNG", (w, 2))), pa.large_binary()),
}
COLUMNS = {**SCALARS, **OTHERS}
NAMES = sorted(COLUMNS)


def same(a, b):
    """Return whether two values are equal, with NaN equal to itself and zeros compared with their sign."""
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, np.ndarray):
        b = np.asarray(b, a.dtype)
        return a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b
