"""The lines of a ledger's files: encoding them, and parsing and validating them.

{"smalti_ledger":1,"life":1,"world":{...},"versions":{...}}                     once, first
{"pass":0,"batch_size":4,"tail":"pad","replication":1,"cursor":{...}}           an iteration begins here
{"step":0,"epoch":0,"at":[3,2],"ids":[17,4],"repeats":[8]}                      positions 3 and 5, and one repeat
{"step":1,"epoch":0,"positions":[9,4],"ids":[11,2]}                             positions in no progression
{"skipped":[[7,5,"shard.00000.mds","..."]],"step":2,"epoch":0}                  position 7, sample 5: not read, and why
{"sum":"00..ff","steps":2,"samples":4,"repeats":1}                              in mode `digest`, instead of steps
{"end":0}                                                                       the iteration's epoch was finished

The running sum of mode `digest` has 128 bits and does not depend on the order in which samples are added. Each sample
adds mix(epoch, position, id), in two halves of 64 bits; a skipped sample is added as well, and its line says so. Equal
sums mean equal samples at equal positions, except with a probability of 2^-128. The sum is not cryptographic: it does
not protect against forgery.

Also here: files in segments, `rank-00000.jsonl`, then `rank-00000.jsonl.1` and so on, which are read as one file.
"""

import io
import json
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from smalti import __version__
from smalti.cursor import Cursor
from smalti.errors import CursorError, FormatError, StoreError, WorldMismatch
from smalti.regular_files import open_regular
from smalti.world import World

Ids = NDArray[np.int64]

_Words = NDArray[np.uint64]
_MASK = (1 << 64) - 1
# Constants of splitmix64.
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
# Odd numbers from the digits of pi: factors of epoch, position and id in each half.
_HALVES = (
    tuple(map(np.uint64, (0x243F6A8885A308D3, 0x13198A2E03707345, 0xA4093822299F31D1))),
    tuple(map(np.uint64, (0x082EFA98EC4E6C89, 0x452821E638D01377, 0xBE5466CF34E90C6D))),
)
LEDGER_VERSION = 1
MAX_LINE_BYTES = 1 << 26  # a step of four million samples; longer lines are refused
_MAX_NUMBER = 1 << 62
_SUM = re.compile("[0-9a-f]{32}")
# The form of nearly every step, which is parsed four times as fast as JSON.
_PLAIN_STEP = re.compile(
    rb'\{"step":(\d{1,18}),"epoch":(\d{1,18}),"at":\[(\d{1,18}),(\d{1,11})\],"ids":\[(\d[\d,]*)\]\}\n'
)


@dataclass(frozen=True)
class PassStart:
    """The start of one iteration over an epoch, or the rest of one, and the options that divide it into steps."""

    cursor: Cursor
    batch_size: int
    """Samples per rank and step."""
    tail: str = "pad"
    """Treatment of an incomplete last step: `pad`, `short` or `drop`."""
    replication: int = 1
    """Consecutive ranks that take the same samples."""


@dataclass(frozen=True)
class SkippedSample:
    """A planned sample that was not read."""

    position: int
    """Its position in the epoch's order; -1 for a repeat."""
    sample_id: int
    shard: str
    """Name of the file that holds it."""
    cause: str
    """The error that it raised."""


@dataclass(frozen=True)
class Sum:
    """The sum of the samples taken so far in a pass, and their number."""

    value: int = 0
    samples: int = 0
    repeats: int = 0

    def __add__(self, other: "Sum") -> "Sum":
        high = (self.value >> 64) + (other.value >> 64) & _MASK
        low = self.value + other.value & _MASK
        return Sum(high << 64 | low, self.samples + other.samples, self.repeats + other.repeats)


def sum_of(epoch: int, positions: Ids, ids: Ids) -> Sum:
    """Return the sum of some samples; position -1 marks a repeat, which is counted but not summed."""
    real = positions >= 0
    repeats = real.size - int(np.count_nonzero(real))
    if repeats:
        positions, ids = positions[real], ids[real]
    first, second = (_half(epoch, positions, ids, constants) for constants in _HALVES)
    return Sum(first << 64 | second, positions.size, repeats)


def _half(epoch: int, positions: Ids, ids: Ids, constants: tuple[np.uint64, ...]) -> int:
    by_epoch, by_position, by_id = constants
    base = np.uint64((epoch + 1) * int(by_epoch) & _MASK)
    words: _Words = _mixed(positions.astype(np.uint64) * by_position + base) + ids.astype(np.uint64) * by_id
    return int(_mixed(words).sum(dtype=np.uint64))


def _mixed(words: _Words) -> _Words:
    """Apply splitmix64's finaliser, in which every input bit affects every output bit."""
    words = (words ^ words >> np.uint64(30)) * _MIX[0]
    words = (words ^ words >> np.uint64(27)) * _MIX[1]
    mixed: _Words = words ^ words >> np.uint64(31)
    return mixed


@dataclass(frozen=True)
class RecordedStep:
    """The samples that one rank took at one step of a pass."""

    step: int
    epoch: int
    positions: Ids
    """Positions in the epoch's order, without repeats."""
    ids: Ids
    """Sample ids, one for each position."""
    num_repeats: int = 0
    skipped: tuple[SkippedSample, ...] = ()
    """One for each position if the samples were not read; else empty."""


def head_line(life: int, world: World) -> bytes:
    """Return the first line of a rank's file."""
    versions = {"smalti": __version__, "numpy": np.__version__, "python": platform.python_version()}
    return _line({"smalti_ledger": LEDGER_VERSION, "life": life, "world": asdict(world), "versions": versions})


def pass_line(number: int, start: PassStart) -> bytes:
    """Return the line that begins a pass."""
    head = {"pass": number, "batch_size": start.batch_size, "tail": start.tail, "replication": start.replication}
    return _line(head | {"cursor": start.cursor.to_state()})


def step_line(step: int, epoch: int, positions: Ids, ids: Ids) -> bytes:
    """Return the line of a step; position -1 marks a repeat."""
    line: dict[str, Any] = {"step": step, "epoch": epoch}
    real = positions >= 0
    repeats = [] if real.all() else ids[~real].tolist()
    if repeats:
        positions, ids = positions[real], ids[real]
    stride = int(positions[1] - positions[0]) if positions.size > 1 else 1
    if positions.size and stride > 0 and (np.diff(positions) == stride).all():
        line["at"] = [int(positions[0]), stride]
    else:
        line["positions"] = positions.tolist()
    line["ids"] = ids.tolist()
    if repeats:
        line["repeats"] = repeats
    return _line(line)


def skipped_line(step: int, epoch: int, skipped: Sequence[SkippedSample]) -> bytes:
    """Return the line of the planned samples of a step that were not read."""
    samples = [[each.position, each.sample_id, each.shard, each.cause] for each in skipped]
    return _line({"skipped": samples, "step": step, "epoch": epoch})


def sum_line(steps: int, total: Sum) -> bytes:
    """Return the line of a pass's running sum after `steps` steps."""
    return _line({"sum": f"{total.value:032x}", "steps": steps, "samples": total.samples, "repeats": total.repeats})


def end_line(number: int) -> bytes:
    """Return the line that ends a pass which was read to its end."""
    return _line({"end": number})


def parse_head(line: bytes, *, life: int, rank: int) -> World:
    """Return the world in a file's first line.

    Raises:
        FormatError: the line is not the head of this life's and rank's file.
    """
    head = _parse(line)
    version = head.get("smalti_ledger")
    if type(version) is not int or version < 1:
        raise FormatError("not the head of a ledger: no whole number `smalti_ledger` in it.")
    if version > LEDGER_VERSION:
        raise FormatError(f"written as ledger version {version}, this Smalti reads up to {LEDGER_VERSION}: upgrade it.")
    fields = head.get("world")
    names = World.__dataclass_fields__
    if not isinstance(fields, dict) or set(fields) != set(names) or {type(value) for value in fields.values()} != {int}:
        raise FormatError(f"a head whose `world` is not {', '.join(names)} as whole numbers.")
    try:
        world = World(**fields)
    except WorldMismatch as fault:
        raise FormatError(f"a head with an impossible world: {fault}") from fault
    if head.get("life") != life or world.rank != rank:
        raise FormatError(
            f"the file is named for life {life} and rank {rank}, its head says life {head.get('life')!r:.20} and rank "
            f"{world.rank}: it was copied or renamed."
        )
    return world


def parse_pass(line: bytes, *, number: int) -> PassStart:
    """Return the start of a pass, which must be the `number`-th of its file, from 0.

    Raises:
        FormatError: it is another pass, or a field is missing or out of range.
    """
    fields = _parse(line)
    if fields.get("pass") != number:
        raise FormatError(f"pass {fields.get('pass')!r:.20} begins where pass {number} is due: lines are lost.")
    state = fields.get("cursor")
    if not isinstance(state, dict):
        raise FormatError("a pass without a `cursor`.")
    try:
        cursor = Cursor.from_state(state)
    except CursorError as fault:
        raise FormatError(f"a pass with a damaged cursor: {fault}") from fault
    tail = fields.get("tail")
    if tail not in ("pad", "short", "drop"):
        raise FormatError("a pass whose `tail` is none of pad, short, drop.")
    return PassStart(cursor, _whole(fields, "batch_size", low=1), tail, _whole(fields, "replication", low=1))


def parse_end(line: bytes, *, number: int) -> None:
    """Check that a line ends pass `number`.

    Raises:
        FormatError: it ends another pass.
    """
    if _parse(line) != {"end": number}:
        raise FormatError(f"a line that ends another pass than {number}, which is open.")


def parse_sum(line: bytes) -> tuple[int, Sum]:
    """Return the number of steps in a running sum, and the sum.

    Raises:
        FormatError: a field is missing, of another type or out of range.
    """
    fields = _parse(line)
    value = fields.get("sum")
    if not isinstance(value, str) or _SUM.fullmatch(value) is None:
        raise FormatError("a `sum` that is not 32 hexadecimal digits.")
    total = Sum(int(value, 16), _whole(fields, "samples", low=0), _whole(fields, "repeats", low=0))
    return _whole(fields, "steps", low=1), total


def parse_step(line: bytes) -> RecordedStep:
    """Return the step of a line.

    Raises:
        FormatError: a field is missing, of another type or out of range.
    """
    plain = _PLAIN_STEP.fullmatch(line)
    if plain is not None and b",," not in line and not plain[5].endswith(b","):
        ids = np.fromstring(plain[5], dtype=np.int64, sep=",")
        if ids.max() < _MAX_NUMBER:  # numbers that do not fit were replaced by the greatest int64
            positions = _progression(int(plain[3]), int(plain[4]), ids.size)
            return RecordedStep(int(plain[1]), int(plain[2]), positions, ids)
    fields = _parse(line)
    ids = _numbers(fields, "ids")
    if "at" in fields:
        at = _numbers(fields, "at").tolist()
        if len(at) != 2:
            raise FormatError("a step whose `at` is not [first position, stride].")
        positions = _progression(at[0], at[1], ids.size)
    else:
        positions = _numbers(fields, "positions")
    if positions.size != ids.size:
        raise FormatError(f"a step of {positions.size} positions and {ids.size} ids.")
    repeats = _numbers(fields, "repeats").size if "repeats" in fields else 0
    return RecordedStep(_whole(fields, "step", low=0), _whole(fields, "epoch", low=0), positions, ids, repeats)


def parse_skipped(line: bytes) -> RecordedStep:
    """Return the samples of a step that were not read.

    Raises:
        FormatError: a field is missing, of another type or out of range.
    """
    fields = _parse(line)
    samples = fields.get("skipped")
    if not isinstance(samples, list) or not all(
        isinstance(each, list) and list(map(type, each)) == [int, int, str, str] for each in samples
    ):
        raise FormatError("`skipped` is not a list of [position, sample id, shard, cause].")
    positions = _numbers({"position": [each[0] for each in samples]}, "position")
    ids = _numbers({"sample id": [each[1] for each in samples]}, "sample id")
    step, epoch = _whole(fields, "step", low=0), _whole(fields, "epoch", low=0)
    return RecordedStep(step, epoch, positions, ids, skipped=tuple(SkippedSample(*each) for each in samples))


def _progression(first: int, stride: int, count: int) -> Ids:
    if not 1 <= stride < 1 << 40 or first + stride * count >= _MAX_NUMBER:
        raise FormatError("a step whose `at` is not [first position, stride].")
    return first + stride * np.arange(count, dtype=np.int64)


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise FormatError("a line that is not JSON.") from fault
    if not isinstance(value, dict):
        raise FormatError("a line that is not a JSON object.")
    return value


def _whole(fields: dict[str, Any], key: str, *, low: int) -> int:
    value = fields.get(key)
    if type(value) is not int or not low <= value < _MAX_NUMBER:
        raise FormatError(f"`{key}` is not a whole number from {low}.")
    return value


def _numbers(fields: dict[str, Any], key: str) -> Ids:
    value = fields.get(key)
    if value == []:
        return np.empty(0, dtype=np.int64)
    try:
        numbers = np.array(value)
    except (ValueError, OverflowError) as fault:
        raise FormatError(f"`{key}` is not a list of whole numbers.") from fault
    if numbers.ndim != 1 or numbers.dtype != np.int64 or numbers.min() < 0 or numbers.max() >= _MAX_NUMBER:
        raise FormatError(f"`{key}` is not a list of whole numbers from 0.")
    return numbers


# ------------------------------------------------------------------ segments


SEGMENT = re.compile(r"(rank-\d{5,9}\.jsonl)\.([1-9]\d{0,8})")
"""The name of a segment after the first: that of the file, and a number."""


def segment_name(name: str, number: int) -> str:
    """Return the name, or key, of a segment of a file; the first is number 0."""
    return name if number == 0 else f"{name}.{number}"


def missing_segment(name: str, names: Iterable[str]) -> str | None:
    """Return the name of the first segment of a file that is missing before others; None if there is none."""
    numbers = {int(match[2]) for each in names if (match := SEGMENT.fullmatch(each)) and match[1] == name}
    missing = set(range(1, max(numbers, default=0))) - numbers
    return segment_name(name, min(missing)) if missing else None


def open_segments(path: Path) -> BinaryIO:
    """Open a file with its segments as one stream of bytes.

    Raises:
        StoreError: the first cannot be opened.
        FormatError: one is not a plain file.
    """
    return cast("BinaryIO", io.BufferedReader(_Joined(path)))


class _Joined(io.RawIOBase):
    """The bytes of a file and of its segments, one after the other."""

    def __init__(self, path: Path) -> None:
        self._parts = _opened(path)
        self._part = next(self._parts)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read bytes into a buffer, and return their number; 0 at the end of the last segment."""
        while not (count := self._part.readinto(buffer)):  # type: ignore[arg-type]  # a buffer of BufferedReader's
            following = next(self._parts, None)
            if following is None:
                return 0
            self._part.close()
            self._part = following
        return count

    def close(self) -> None:
        """Close the segment that is open."""
        self._part.close()
        super().close()


def _opened(path: Path) -> Iterator[io.FileIO]:
    for number in count():
        part = path.with_name(segment_name(path.name, number))
        if number and not part.exists():
            return
        try:
            yield open_regular(part, 0)
        except (StoreError, IsADirectoryError) as fault:
            raise FormatError(f"{part} is not a plain file: {fault.strerror}.", path=str(part)) from fault
        except OSError as fault:
            raise StoreError(f"ledger {part}: cannot be read: {fault.strerror}.", path=str(part)) from fault
