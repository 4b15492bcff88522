"""Ring: shared memory in which loader workers deliver batches without a copy; the content of a slot is in `packing`.

Torch creates a new shared file for every tensor of every batch and passes its descriptor through a socket: the pages
are zeroed, filled, mapped and discarded each time. A ring is created once per iteration and reuses its pages.

Intended behaviour; anything else is a bug:
1. The memory is unnamed: a killed process leaves nothing behind. Only pages that were written take memory.
2. Each worker owns some slots. It fills a free one and sends its number; the consumer frees the slot when the last
   tensor or array over it is gone. Memory that the consumer can still see is never written again.
3. A fork of the consumer sees the slots that its parent saw, so slots in use at that moment are retired. A ring with
   too many retired slots is replaced together with its persistent workers.
4. A worker without a free slot, or with a batch that fits into none, sends it as torch does. Workers never wait for a
   slot.
"""

import mmap
import os
import secrets
import sys
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLOT_BYTES = 1 << 28
"""Size of a slot's address range; only pages that were written take memory."""
_FREE, _USED, _RETIRED = 0, 1, 2
_HEADER = mmap.PAGESIZE  # states of the slots, one byte each

Bytes = NDArray[np.uint8]


class Ring:
    """Slots of shared memory, of which each worker owns `slots_each`."""

    def __init__(self, num_workers: int, slots_each: int) -> None:
        """Use `Ring.create`."""
        self.slots_each = slots_each
        self.key = secrets.token_hex(8)
        self._length = _HEADER + num_workers * slots_each * SLOT_BYTES
        descriptor = os.memfd_create("smalti-ring")
        try:
            os.ftruncate(descriptor, self._length)
            self._open(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        _rings[self.key] = self

    @classmethod
    def create(cls, num_workers: int, slots_each: int) -> "Ring | None":
        """Return a ring for this process and its workers; None if the system has no such memory."""
        if sys.platform != "linux" or num_workers * slots_each > _HEADER:
            return None
        try:
            return cls(num_workers, slots_each)
        except OSError:  # a limit on address space, or no support in the kernel: torch's own way always works
            return None

    def _open(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, self._length)
        self._states: Bytes = np.frombuffer(self._map, np.uint8, _HEADER)
        self._descriptor = descriptor
        self._leased: set[int] = set()
        weakref.finalize(self, os.close, descriptor)

    # ------------------------------------------------------------------ in a worker

    def take(self, worker: int) -> int | None:
        """Return a free slot of this worker, now marked as used; None if there is none."""
        for slot in range(worker * self.slots_each, (worker + 1) * self.slots_each):
            if self._states[slot] == _FREE:
                self._states[slot] = _USED
                return slot
        return None

    def drop(self, slot: int) -> None:
        """Free a slot that was taken and not sent."""
        self._states[slot] = _FREE

    def memory(self, slot: int) -> Bytes:
        """Return a slot's memory, uint8, shape (SLOT_BYTES,), writable."""
        return np.frombuffer(self._map, np.uint8, SLOT_BYTES, _HEADER + slot * SLOT_BYTES)

    # ------------------------------------------------------------------ in the consumer

    def lease(self, slot: int) -> Bytes:
        """Return a slot's memory; the slot is freed when this array and all views of it are gone."""
        memory = self.memory(slot)
        self._leased.add(slot)
        weakref.finalize(memory, self._give_back, slot, os.getpid()).atexit = False
        return memory

    def _give_back(self, slot: int, pid: int) -> None:
        if os.getpid() == pid:  # a fork must not free a slot that its parent may still use
            self._leased.discard(slot)
            if self._states[slot] == _USED:
                self._states[slot] = _FREE

    def retire_leased(self) -> None:
        """Retire the slots in use by this process: they are never used again."""
        for slot in tuple(self._leased):
            self._states[slot] = _RETIRED

    @property
    def is_worn(self) -> bool:
        """True if more than half of the slots of some worker are retired."""
        num_slots = (self._length - _HEADER) // SLOT_BYTES
        retired = self._states[:num_slots].reshape(-1, self.slots_each) == _RETIRED
        return bool((2 * retired.sum(axis=1) > self.slots_each).any())

    # ------------------------------------------------------------------ to a spawned worker

    def __getstate__(self) -> dict[str, Any]:
        return {"slots_each": self.slots_each, "key": self.key, "_length": self._length, "fd": DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        descriptor = state.pop("fd").detach()
        self.__dict__.update(state)
        self._open(descriptor)


def ring_of(key: str) -> Ring:
    """Return the ring of this process with a key; its iteration must still be running."""
    return _rings[key]


def _retire_leased() -> None:
    for ring in list(_rings.values()):
        ring.retire_leased()


_rings: "weakref.WeakValueDictionary[str, Ring]" = weakref.WeakValueDictionary()
os.register_at_fork(before=_retire_leased)
