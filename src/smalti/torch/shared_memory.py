"""Batches of loader workers delivered through shared memory, without a copy.

Torch creates a new shared file for every tensor of every batch and passes its descriptor through a socket: the pages
are zeroed, filled, mapped and discarded each time. A ring is created once per iteration and reuses its pages.

A worker copies tensors and bytes into one slot, end to end, and sends a skeleton of the batch with their places.
Unpickling the skeleton in the consumer restores the batch: tensors are views of the slot, bytes are copied. Only plain
containers (dict, list, tuple) are searched; everything else is pickled as torch does it.

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
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from smalti.torch.worker_processes import end_with_program

SLOT_BYTES = 1 << 28
"""Size of a slot's address range; only pages that were written take memory."""
_FREE, _USED, _RETIRED = 0, 1, 2
_HEADER = mmap.PAGESIZE  # states of the slots, one byte each
Bytes = NDArray[np.uint8]
_rings: "weakref.WeakValueDictionary[str, Ring]" = weakref.WeakValueDictionary()
_ALIGNMENT = 64  # bytes; a cache line, and more than any dtype needs
_MIN_BYTES = 256  # pickling less is faster than placing it
_SWITCH_SECONDS = 1e-4
"""Python's thread switch interval in worker processes, where a thread of the queue sends batches while the next one is
read. With the default of 5 ms it gets the interpreter only when the reader pauses, which halves the speed."""


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


def _retire_leased() -> None:
    """Retire the slots in use by this process before a fork: they are never used again."""
    for ring in list(_rings.values()):
        for slot in tuple(ring._leased):
            ring._states[slot] = _RETIRED


os.register_at_fork(before=_retire_leased)


class PackingCollate:
    """A collate function that packs the batches of worker processes into a ring."""

    def __init__(self, collate: Callable[[Any], Any], ring: Ring) -> None:
        self._collate, self.ring = collate, ring

    def __call__(self, samples: Any) -> Any:
        """Collate samples; in a worker, pack the batch if a slot is free."""
        batch, worker = self._collate(samples), get_worker_info()
        if worker is None:
            return batch
        if sys.getswitchinterval() > _SWITCH_SECONDS:
            sys.setswitchinterval(_SWITCH_SECONDS)
        end_with_program()
        return pack(batch, self.ring, worker.id)


@dataclass(frozen=True)
class _TensorPlace:
    begin: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def restored(self, slot: torch.Tensor) -> torch.Tensor:
        return slot[self.begin : self.end].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class _BytesPlaces:
    offsets: list[int]
    """Beginning of the first value, and end of each."""

    def restored(self, slot: torch.Tensor) -> list[bytes]:
        memory = memoryview(slot.numpy())
        return [bytes(memory[begin:end]) for begin, end in pairwise(self.offsets)]


class _Packed:
    """A packed batch as a worker sends it; unpickling restores the batch."""

    def __init__(self, key: str, slot: int, skeleton: Any) -> None:
        self._parts = key, slot, skeleton

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._parts


def pack(batch: Any, ring: Ring, worker: int) -> Any:
    """Return the batch packed into a slot of this worker; the batch itself if no slot is free."""
    slot = ring.take(worker)
    if slot is None:
        return batch
    try:
        return _Packed(ring.key, slot, _SlotWriter(ring.memory(slot)).put(batch))
    except BaseException:
        ring.drop(slot)
        raise


def _unpack(key: str, slot: int, skeleton: Any) -> Any:
    return _restored(skeleton, torch.from_numpy(_rings[key].lease(slot)))  # of an iteration that is still running


class _SlotWriter:
    """A writer that fills a slot from its beginning."""

    def __init__(self, memory: Bytes) -> None:
        self._memory, self._used = memory, 0

    def put(self, value: Any) -> Any:
        """Copy what fits of `value` into the slot; return `value` with the copied parts replaced by their places."""
        kind = type(value)
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind is dict:
            return {name: self.put(item) for name, item in value.items()}
        if kind is list and value and all(type(item) is bytes for item in value):
            return self._bytes(value)
        if kind in (list, tuple) and any(type(item) in _SEARCHED_TYPES for item in value):
            return kind(self.put(item) for item in value)
        return value

    def _tensor(self, value: torch.Tensor) -> Any:
        begin = self._reserve(value.nbytes) if _is_plain(value) else None
        if begin is None:
            return value
        slot = torch.from_numpy(self._memory[begin : self._used])
        slot.copy_(value.reshape(-1).view(torch.uint8))
        return _TensorPlace(begin, self._used, value.dtype, tuple(value.shape))

    def _bytes(self, values: list[bytes]) -> Any:
        sizes = [len(value) for value in values]
        begin = self._reserve(sum(sizes))
        if begin is None:
            return values
        memory = memoryview(self._memory)
        offsets = list(accumulate(sizes, initial=begin))
        for value, at, end in zip(values, offsets, offsets[1:], strict=False):
            memory[at:end] = value
        return _BytesPlaces(offsets)

    def _reserve(self, num_bytes: int) -> int | None:
        """Reserve bytes and return their offset; None if they are too few or do not fit."""
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if num_bytes < _MIN_BYTES or begin + num_bytes > len(self._memory):
            return None
        self._used = begin + num_bytes
        return begin


def _is_plain(value: torch.Tensor) -> bool:
    """Return whether a tensor is fully described by its bytes in order, its dtype and its shape."""
    return (
        value.device.type == "cpu"
        and value.layout is torch.strided
        and value.is_contiguous()
        and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg())
    )


def _restored(value: Any, slot: torch.Tensor) -> Any:
    kind = type(value)
    if kind in _PLACE_TYPES:
        return value.restored(slot)
    if kind is dict:
        return {name: _restored(item, slot) for name, item in value.items()}
    if kind in (list, tuple) and any(type(item) in _SEARCHED_TYPES for item in value):
        return kind(_restored(item, slot) for item in value)
    return value


_PLACE_TYPES = (_TensorPlace, _BytesPlaces)


_SEARCHED_TYPES = (torch.Tensor, dict, list, tuple, *_PLACE_TYPES)
