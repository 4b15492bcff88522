"""Packing of batches in worker processes: large values go through shared memory (see ring), the rest is pickled.

A worker copies tensors and bytes into one slot, end to end, and sends a skeleton of the batch with their places.
Unpickling the skeleton in the consumer restores the batch: tensors are views of the slot, bytes are copied. Only plain
containers (dict, list, tuple) are searched; everything else is sent as torch sends it.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.utils.data import get_worker_info

from smalti.torch.workers.processes import end_with_program
from smalti.torch.workers.ring import Bytes, Ring, ring_of

_ALIGNMENT = 64  # bytes; a cache line, and more than any dtype needs
_MIN_BYTES = 256  # pickling less is faster than placing it
_SWITCH_SECONDS = 1e-4
"""Python's thread switch interval in worker processes, where a thread of the queue sends batches while the next one is
read. With the default of 5 ms it gets the interpreter only when the reader pauses, which halves the speed."""


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
    return _restored(skeleton, torch.from_numpy(ring_of(key).lease(slot)))


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
