"""MosaicML's objects in named shared memory, for code that uses them; the engine itself has no named shared memory.

`memory` is the file to read first: the others are arrays, a number, a barrier and a register of folders in it.
"""

from smalti.compat.streaming.base.shared.array import SharedArray
from smalti.compat.streaming.base.shared.barrier import SharedBarrier
from smalti.compat.streaming.base.shared.memory import SharedMemory
from smalti.compat.streaming.base.shared.prefix import _get_path as _get_path
from smalti.compat.streaming.base.shared.prefix import get_shm_prefix
from smalti.compat.streaming.base.shared.scalar import SharedScalar

__all__ = ["SharedArray", "SharedBarrier", "SharedMemory", "get_shm_prefix", "SharedScalar"]
