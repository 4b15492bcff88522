"""Files of NumPy, `.npy`: one array in memory, without the memory that a false header claims.

`numpy.load` allocates the array that the header declares before it reads the content.
"""

import io
import math
from typing import Any

import numpy as np

_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(content: bytes | bytearray | memoryview) -> np.ndarray[Any, Any]:
    """Return the array of a `.npy` file of numbers, texts or dates; it is a read-only view of the content.

    Raises:
        ValueError: The content is no such file, has pickled objects, or is shorter or longer than its header declares.
    """
    data = memoryview(content).toreadonly()
    file = io.BytesIO(bytes(data[: 1 << 14]))  # NumPy reads headers of 10,000 characters
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"the format {version} is not that of numbers")
        shape, is_fortran, dtype = _HEADERS[version](file)
    except Exception as error:
        # NumPy evaluates the header as a Python literal, which can fail in many ways.
        raise ValueError(f"no .npy file: {str(error)[:200]}") from error
    begin = file.tell()
    if dtype.hasobject:
        raise ValueError("the file has pickled objects, which are never loaded")
    declared, found = math.prod(shape) * dtype.itemsize, len(data) - begin
    if any(length < 0 for length in shape) or declared != found:
        raise ValueError(f"the header declares shape {shape!s:.80} of {dtype}, {declared} bytes; found {found}")
    try:
        return np.ndarray(shape, dtype, data, begin, order="F" if is_fortran else "C")
    except (TypeError, ValueError, ArithmeticError) as error:  # axes of no length beside enormous ones
        raise ValueError(f"the header declares shape {shape!s:.80}, which is no shape: {error}") from error
