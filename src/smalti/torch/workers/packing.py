"""Batches on their way from a worker process: what is large goes through a ring's memory, the rest is pickled.

A worker packs: tensors and bytes are copied into one slot, end to end, and a skeleton tells where each lies. Unpickling
it in the consumer makes the batch again: tensors are views of the slot, bytes are copied out. Only plain containers
(dict, list, tuple) are looked into; everything else travels as torch sends it.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.utils.data import get_worker_info

from smalti.torch.workers.processes import end_with_program
from smalti.torch.workers.ring import Bytes, Ring, ring_of

_ALIGNMENT = 64  # bytes; a cache line, and more than any dtype needs
_MIN_BYTES = 256  # less is pickled sooner than placed


_SWITCH_SECONDS = 1e-4
"""In a worker process, a thread of the queue's own sends batches, and wants the interpreter while the next one is read.
With Python's default of 5 ms it waits until the reader pauses, and then all batches come at once: half the speed."""


class PackingCollate:
    """A collate function whose batches leave a worker process through a ring."""

    def __init__(self, collate: Callable[[Any], Any], ring: Ring) -> None:
        self._collate, self.ring = collate, ring

    def __call__(self, samples: Any) -> Any:
        """The collated batch; in a worker, packed where a slot is free."""
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
    ends: list[int]
    """Where the first value begins, and where each ends."""

    def restored(self, slot: torch.Tensor) -> list[bytes]:
        memory = memoryview(slot.numpy())
        return [bytes(memory[begin:end]) for begin, end in zip(self.ends, self.ends[1:], strict=False)]


class _Packed:
    """What a worker sends: unpickled, it is the batch again."""

    def __init__(self, key: str, slot: int, skeleton: Any) -> None:
        self._parts = key, slot, skeleton

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._parts


def pack(batch: Any, ring: Ring, worker: int) -> Any:
    """The batch as a worker sends it; itself, where the worker has no free slot."""
    slot = ring.take(worker)
    if slot is None:
        return batch
    try:
        return _Packed(ring.key, slot, _Filling(ring.memory(slot)).put(batch))
    except BaseException:
        ring.drop(slot)
        raise


def _unpack(key: str, slot: int, skeleton: Any) -> Any:
    return _restored(skeleton, torch.from_numpy(ring_of(key).lease(slot)))


class _Filling:
    """A slot that is being filled from its beginning."""

    def __init__(self, memory: Bytes) -> None:
        self._memory, self._used = memory, 0

    def put(self, value: Any) -> Any:
        """`value`, with whatever fits into the slot replaced by its place there."""
        kind = type(value)
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind is dict:
            return {name: self.put(item) for name, item in value.items()}
        if kind is list and value and all(type(item) is bytes for item in value):
            return self._bytes(value)
        if kind in (list, tuple) and any(type(item) in _LOOKED_INTO for item in value):
            return kind(self.put(item) for item in value)
        return value

    def _tensor(self, value: torch.Tensor) -> Any:
        begin = self._place(value.nbytes) if _is_plain(value) else None
        if begin is None:
            return value
        slot = torch.from_numpy(self._memory[begin : self._used])
        slot.copy_(value.reshape(-1).view(torch.uint8))
        return _TensorPlace(begin, self._used, value.dtype, tuple(value.shape))

    def _bytes(self, values: list[bytes]) -> Any:
        sizes = [len(value) for value in values]
        begin = self._place(sum(sizes))
        if begin is None:
            return values
        memory = memoryview(self._memory)
        ends = list(accumulate(sizes, initial=begin))
        for value, at, end in zip(values, ends, ends[1:], strict=False):
            memory[at:end] = value
        return _BytesPlaces(ends)

    def _place(self, num_bytes: int) -> int | None:
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if num_bytes < _MIN_BYTES or begin + num_bytes > len(self._memory):
            return None
        self._used = begin + num_bytes
        return begin


def _is_plain(value: torch.Tensor) -> bool:
    """Whether the tensor is its bytes in order, its dtype and its shape, and nothing else."""
    return (
        value.device.type == "cpu"
        and value.layout is torch.strided
        and value.is_contiguous()
        and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg())
    )


def _restored(value: Any, slot: torch.Tensor) -> Any:
    kind = type(value)
    if kind in _PLACES:
        return value.restored(slot)
    if kind is dict:
        return {name: _restored(item, slot) for name, item in value.items()}
    if kind in (list, tuple) and any(type(item) in _LOOKED_INTO for item in value):
        return kind(_restored(item, slot) for item in value)
    return value


_PLACES = (_TensorPlace, _BytesPlaces)
_LOOKED_INTO = (torch.Tensor, dict, list, tuple, *_PLACES)
