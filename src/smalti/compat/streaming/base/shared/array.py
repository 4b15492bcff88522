"""`SharedArray`: a numpy array in named shared memory."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.shared.memory import SharedMemory


class SharedArray:
    """A numpy array of fixed shape and dtype in named shared memory, zero when it is created.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        name: Name of the memory, which is created or attached to.

    Raises:
        ValueError: a running process has memory of this name that is too small.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: type, name: str) -> None:
        self.shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        self.dtype = dtype
        self.name = name
        size = math.prod(self.shape) * np.dtype(dtype).itemsize
        self.shm = SharedMemory(name=name, size=size)
        if len(self.shm.buf) < size:
            raise ValueError(
                f"the shared memory {name!r} of a running process has {len(self.shm.buf)} bytes, and an array of "
                f"{self.shape} {np.dtype(dtype)} needs {size}; give the same shape and dtype in every process."
            )

    def numpy(self) -> NDArray[Any]:
        """Return the array itself; it is not kept, so that this object can be passed to spawned processes."""
        return np.ndarray(self.shape, buffer=self.shm.buf, dtype=self.dtype)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.numpy()[index] = value
