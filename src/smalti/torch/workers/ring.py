"""Shared memory through which loader workers hand batches over without a copy; what is in a batch: `packing`.

Torch makes a new shared file for every tensor of every batch and passes its descriptor through a socket: the pages are
zeroed, filled, mapped and thrown away each time. A ring is made once per iteration and its pages are used again.

Intended behaviour; anything else is a bug:
1. The memory has no name: nothing is left behind by a process that is killed. It takes as much as was written.
2. Each worker owns some slots. It fills one that is free and sends its number; the consumer frees the slot when the
   last tensor or array over it is gone. Memory that the consumer can still see is never written again.
3. A fork of the consumer sees what its parent saw: slots in use at that moment are not used again. A ring that is worn
   out by forks, under workers that live long, is replaced together with them.
4. A worker without a free slot, or with a batch that fits none, takes torch's way instead. Nobody waits for a slot.
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
"""Room in a slot; only pages that were written exist, so that a roomy slot costs nothing."""
_FREE, _USED, _RETIRED = 0, 1, 2
_HEADER = mmap.PAGESIZE  # the slots' states, one byte each

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
        """A ring for this process and its workers; None where the system has no such memory."""
        if sys.platform != "linux" or num_workers * slots_each > _HEADER:
            return None
        try:
            return cls(num_workers, slots_each)
        except OSError:  # a limit on addresses, or a kernel without: torch's way works everywhere
            return None

    def _open(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, self._length)
        self._states: Bytes = np.frombuffer(self._map, np.uint8, _HEADER)
        self._descriptor = descriptor
        self._leased: set[int] = set()
        weakref.finalize(self, os.close, descriptor)

    # ------------------------------------------------------------------ in a worker

    def take(self, worker: int) -> int | None:
        """A free slot of this worker, which is in use from now on."""
        for slot in range(worker * self.slots_each, (worker + 1) * self.slots_each):
            if self._states[slot] == _FREE:
                self._states[slot] = _USED
                return slot
        return None

    def drop(self, slot: int) -> None:
        """Frees a slot that was taken and not sent."""
        self._states[slot] = _FREE

    def memory(self, slot: int) -> Bytes:
        """A slot's memory, uint8, shape (SLOT_BYTES,), writable."""
        return np.frombuffer(self._map, np.uint8, SLOT_BYTES, _HEADER + slot * SLOT_BYTES)

    # ------------------------------------------------------------------ in the consumer

    def lease(self, slot: int) -> Bytes:
        """The same; when this array and all views of it are gone, the slot is free again."""
        memory = self.memory(slot)
        self._leased.add(slot)
        weakref.finalize(memory, self._give_back, slot, os.getpid()).atexit = False
        return memory

    def _give_back(self, slot: int, pid: int) -> None:
        if os.getpid() == pid:  # what a fork forgets, its parent may still hold
            self._leased.discard(slot)
            if self._states[slot] == _USED:
                self._states[slot] = _FREE

    def retire_leased(self) -> None:
        """Makes the slots that are seen here never be used again."""
        for slot in tuple(self._leased):
            self._states[slot] = _RETIRED

    @property
    def is_worn(self) -> bool:
        """Whether some worker has lost more than half of its slots to forks."""
        num_slots = (self._length - _HEADER) // SLOT_BYTES
        retired = self._states[:num_slots].reshape(-1, self.slots_each) == _RETIRED
        return bool((2 * retired.sum(axis=1) > self.slots_each).any())

    # ------------------------------------------------------------------ to a worker that is no fork

    def __getstate__(self) -> dict[str, Any]:
        return {"slots_each": self.slots_each, "key": self.key, "_length": self._length, "fd": DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        descriptor = state.pop("fd").detach()
        self.__dict__.update(state)
        self._open(descriptor)


def ring_of(key: str) -> Ring:
    """The ring of this process by its key, while an iteration over it lives."""
    return _rings[key]


def _retire_leased() -> None:
    for ring in list(_rings.values()):
        ring.retire_leased()


_rings: "weakref.WeakValueDictionary[str, Ring]" = weakref.WeakValueDictionary()
os.register_at_fork(before=_retire_leased)
