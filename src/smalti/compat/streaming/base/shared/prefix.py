"""`get_shm_prefix`: a register of the local folders that jobs of one machine use, in named shared memory.

An entry is a block of memory named after its number. The kernel lets only one process create it, so two jobs never
share a number. It ends with its creator; what a killed one left is removed by the next search, which leaves entries of
MosaicML's own processes alone: they do not have `_OURS` behind their end, where MosaicML's reader does not look.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count

from smalti.compat.streaming.base.constant import LOCALS, TICK
from smalti.compat.streaming.base.shared.memory import SharedMemory, attached, is_held, remove_left_over
from smalti.compat.streaming.base.world import World

_SIZE_BYTES = 4
_OURS = b"smalti"


def _each_prefix_int() -> Iterator[int]:
    """Return the numbers of entries, in the order of the search."""
    return count()


def _get_path(prefix_int: int, name: str) -> str:
    """Return the name of a block of memory with this number."""
    return f"{prefix_int:06}_{name}"


def _pack_locals(dirnames: list[str], prefix_int: int) -> bytes:
    """Return the bytes of an entry: their number, the folders, and the entry's number."""
    text = "\0".join([*dirnames, str(prefix_int)]).encode()
    return (_SIZE_BYTES + len(text)).to_bytes(_SIZE_BYTES, sys.byteorder) + text


def _unpack_locals(data: bytes) -> tuple[list[str], int]:
    """Return the folders and the number of an entry; bytes after its end are ignored."""
    size = int.from_bytes(data[:_SIZE_BYTES], sys.byteorder)
    *dirnames, prefix_int = data[_SIZE_BYTES:size].decode().split("\0")
    return dirnames, int(prefix_int or 0)


def get_shm_prefix(
    streams_local: list[str], streams_remote: list[str | None], world: World, retry: int = 100
) -> tuple[int, SharedMemory]:
    """Return the number of this job's entry, and its memory; the first rank of the machine registers it.

    Args:
        streams_local: Local folder of each stream.
        streams_remote: Remote folder of each stream; local folders without one may be shared by jobs.
        world: The place of this process among the ranks.
        retry: Further checks of a folder that another job still uses, one each polling interval.

    Raises:
        ValueError: a folder occurs twice, or a running job downloads into it; or `retry` is negative.
        RuntimeError: the first rank of the machine has registered no such folders.
    """
    if retry < 0:
        raise ValueError(f"Specify at least zero retries (provided {retry}).")
    repeated = [folder for folder, times in Counter(streams_local).items() if times > 1]
    if repeated:
        raise ValueError(f"Reused local directory: {repeated}. Provide a different one.")
    if world.is_local_leader:
        downloads = {local for local, remote in zip(streams_local, streams_remote, strict=True) if remote is not None}
        found = _register(streams_local, downloads, retry)
        _meet()
        return found
    _meet()
    for number, memory, folders in _entries():
        if folders == streams_local:
            return number, memory
    raise RuntimeError(
        f"Internal error: shared memory for {streams_local} was not registered by local leader. This may be because "
        "you specified different ``local`` parameters from different ranks."
    )


def _register(folders: list[str], downloads: set[str], retry: int) -> tuple[int, SharedMemory]:
    """Create an entry with the first free number, once no other entry has one of the folders to download into."""
    for attempt in range(retry + 1):
        used = sorted({folder for _, _, theirs in _entries() for folder in theirs} & downloads)
        if not used:
            break
        if attempt == retry:
            raise ValueError(
                f"Reused local directory: {folders} vs {used}. Provide a different one: that is the local directory of "
                "a running job. If it is of this process, call `streaming.base.util.clean_stale_shared_memory()`."
            )
        time.sleep(TICK)
    number = 0
    while True:
        data = _pack_locals(folders, number) + _OURS
        try:
            memory = SharedMemory(_get_path(number, LOCALS), create=True, size=len(data))
        except (FileExistsError, PermissionError):
            number += 1
            continue
        memory.buf[: len(data)] = data
        return number, memory


def _entries() -> Iterator[tuple[int, SharedMemory, list[str]]]:
    """Yield number, memory and folders of all entries, up to the first free number."""
    for number in _each_prefix_int():
        try:
            if _is_left_over(_get_path(number, LOCALS)):
                remove_left_over(_get_path(number, LOCALS))
                continue
            memory = SharedMemory(_get_path(number, LOCALS), create=False, auto_cleanup=False)
        except PermissionError:  # of another user
            continue
        except FileNotFoundError:
            return
        yield number, memory, _unpack_locals(bytes(memory.buf))[0]


def _is_left_over(name: str) -> bool:
    """Return whether an entry is one of ours whose processes have all ended."""
    memory = attached(name)
    try:
        entry = bytes(memory.buf or b"")
        size = int.from_bytes(entry[:_SIZE_BYTES], sys.byteorder)
        return entry[size : size + len(_OURS)] == _OURS and not is_held(memory)
    finally:
        memory.close()


def _meet() -> None:
    """Wait for all ranks, if they are a group of torch's."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
