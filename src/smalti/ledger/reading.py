"""Reading one rank's file: once over its passes, without parsing steps, and once for what the steps took.

A file may end in half a line, where its process was killed; that line does not count. Any other line that is not
ours is damage. A step's line that is damaged is passed over; nothing that follows another damaged line is believed.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from smalti.errors import FormatError, StoreError
from smalti.ledger.records import (
    MAX_LINE_BYTES,
    PassStart,
    Step,
    parse_end,
    parse_head,
    parse_pass,
    parse_step,
    parse_sum,
)
from smalti.ledger.sums import Ids, Sum
from smalti.world import World

_STEP = re.compile(rb'\{"step":(\d{1,18}),')
_CHUNK_SAMPLES = 1 << 16  # checked together: enough to make numpy's calls cheap, little memory


@dataclass
class RankPass:
    """One pass as one rank recorded it."""

    start: PassStart
    num_steps: int = 0
    """The last step recorded, and one."""
    ended: bool = False
    sums: dict[int, Sum] = field(default_factory=dict)
    """Running sums, by the steps that they are of; there are then no lines for steps."""


@dataclass
class RankFile:
    """One rank's file of one life, its steps not yet read."""

    path: Path
    life: int
    world: World
    passes: list[RankPass] = field(default_factory=list)
    num_bytes: int = 0
    """Bytes up to the end of the last line that is believed."""
    torn: bool = False
    """Whether the last line is cut off."""
    damage: str | None = None
    """The line at which reading stopped, and why."""


@dataclass(frozen=True)
class Claims:
    """What a rank says it took in some steps of one pass."""

    file: RankFile
    pass_number: int
    steps: Ids
    """Step of each position."""
    positions: Ids
    ids: Ids
    repeats: tuple[tuple[int, int], ...]
    """Steps with repeats, and their number."""
    damage: tuple[str, ...]
    """Lines that were passed over."""


def scan_file(path: Path, *, life: int, rank: int) -> RankFile:
    """The head and the passes of a file.

    Raises:
        FormatError: it is not this rank's file of a ledger.
        StoreError: it cannot be read.
    """
    with _opened(path) as file:
        found: RankFile | None = None
        for number, line in enumerate(_lines(file), 1):
            if not line.endswith(b"\n"):
                if found is None:
                    raise FormatError(f"{path}: its first line is cut off; the rank died before it began.")
                found.torn = len(line) <= MAX_LINE_BYTES
                found.damage = None if found.torn else f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes."
                return found
            try:
                if found is None:
                    found = RankFile(path, life, parse_head(line, life=life, rank=rank))
                else:
                    _take_line(found, line)
            except FormatError as fault:
                if found is None:
                    raise FormatError(f"{path}: {fault}", path=str(path)) from fault
                found.damage = f"{path}, line {number}: {fault}"
                return found
            found.num_bytes += len(line)
    if found is None:
        raise FormatError(f"{path} is empty; the rank died before it began.", path=str(path))
    return found


def read_claims(file: RankFile) -> Iterator[Claims]:
    """What the file's steps took, pass by pass, some tens of thousands of samples at a time."""
    number, waiting = -1, _Waiting()
    with _opened(file.path) as opened:
        left = file.num_bytes
        for line_number, line in enumerate(_lines(opened), 1):
            left -= len(line)
            if left < 0:
                break
            if line.startswith(b'{"step":'):
                waiting.take(line, f"{file.path}, line {line_number}", file.passes[number].start.cursor.epoch)
            begins = line.startswith(b'{"pass":')
            if number >= 0 and (waiting.is_full or begins):
                yield waiting.claims(file, number)
                waiting = _Waiting()
            number += begins
    if number >= 0:
        yield waiting.claims(file, number)


class _Waiting:
    """Steps that were read and not yet handed on."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._damage: list[str] = []
        self._weight = 0

    @property
    def is_full(self) -> bool:
        return self._weight >= _CHUNK_SAMPLES

    def take(self, line: bytes, where: str, epoch: int) -> None:
        try:
            step = parse_step(line)
            if step.epoch != epoch:
                raise FormatError(f"a step of epoch {step.epoch} in a pass of epoch {epoch}.")
        except FormatError as fault:
            self._damage.append(f"{where}: {fault}")
            self._weight += 1
            return
        self._steps.append(step)
        self._weight += 1 + step.ids.size

    def claims(self, file: RankFile, number: int) -> Claims:
        none = [np.empty(0, dtype=np.int64)]
        steps = np.array([step.step for step in self._steps], dtype=np.int64)
        return Claims(
            file=file,
            pass_number=number,
            steps=np.repeat(steps, [step.ids.size for step in self._steps]),
            positions=np.concatenate([step.positions for step in self._steps] or none),
            ids=np.concatenate([step.ids for step in self._steps] or none),
            repeats=tuple((step.step, step.num_repeats) for step in self._steps if step.num_repeats),
            damage=tuple(self._damage),
        )


def _take_line(file: RankFile, line: bytes) -> None:
    if line.startswith(b'{"pass":'):
        file.passes.append(RankPass(parse_pass(line, number=len(file.passes))))
        return
    if not file.passes:
        raise FormatError("a line before the first pass.")
    now, step = file.passes[-1], _STEP.match(line)
    if step is not None and not now.sums:
        now.num_steps = max(now.num_steps, int(step[1]) + 1)
    elif line.startswith(b'{"sum":') and (now.sums or not now.num_steps):
        now.num_steps, total = parse_sum(line)
        now.sums[now.num_steps] = total
    elif line.startswith(b'{"end":'):
        parse_end(line, number=len(file.passes) - 1)
        now.ended = True
    else:
        raise FormatError("a line that is none of a ledger's, or steps and sums in one pass.")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")


def _opened(path: Path) -> BinaryIO:
    # Not blocking, so that a pipe of that name cannot hold us up.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as fault:
        raise StoreError(f"ledger {path}: cannot be read: {fault.strerror}.", path=str(path)) from fault
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(f"{path} is not a plain file.", path=str(path))
    return os.fdopen(descriptor, "rb")
