"""`SharedScalar`: one number in named shared memory."""

from typing import Any

from smalti.compat.streaming.base.shared.array import SharedArray


class SharedScalar:
    """A number of fixed dtype in named shared memory.

    Args:
        dtype: Its dtype.
        name: Name of the memory, which is created or attached to.
    """

    def __init__(self, dtype: type, name: str) -> None:
        self.dtype = dtype
        self.name = name
        self.arr = SharedArray(1, dtype, name)

    def get(self) -> Any:
        """Return the number."""
        return self.arr[0]

    def set(self, value: Any) -> None:
        """Replace the number."""
        self.arr[0] = value
