"""The lines of a ledger's files: parsing and validating them, and the writer; each rank appends to its own file.

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

Writing takes no locks and no communication. Files may be in segments, `rank-00000.jsonl`, then `rank-00000.jsonl.1` and
so on, which are read as one file.
"""

import json
import os
import platform
import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti import __version__
from smalti.cursor import WINDOW, Cursor
from smalti.errors import ArgumentError, CursorError, FormatError, StoreError, StoreExists, WorldMismatch
from smalti.regular_files import open_regular
from smalti.splitmix import mixed
from smalti.world import World

Ids = NDArray[np.int64]

_MASK = (1 << 64) - 1
# Odd numbers from the digits of pi: factors of epoch, position and id in each half.
_HALVES = (
    tuple(map(np.uint64, (0x243F6A8885A308D3, 0x13198A2E03707345, 0xA4093822299F31D1))),
    tuple(map(np.uint64, (0x082EFA98EC4E6C89, 0x452821E638D01377, 0xBE5466CF34E90C6D))),
)
LEDGER_VERSION = 1
MAX_LINE_BYTES = 1 << 26  # a step of four million samples; longer lines are refused
_MAX_NUMBER = 1 << 62
_STEPS_PER_SUM = 64  # summed together: numpy's calls cost more than the numbers of one step
MODES = ("steps", "digest")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/|dbfs:", re.IGNORECASE)  # a Path has one slash of two
LIFE_FOLDER = re.compile(r"life-(\d{5,9})")
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
    value = 0
    for by_epoch, by_position, by_id in _HALVES:
        base = np.uint64((epoch + 1) * int(by_epoch) & _MASK)
        words = mixed(positions.astype(np.uint64) * by_position + base) + ids.astype(np.uint64) * by_id
        value = value << 64 | int(mixed(words).sum(dtype=np.uint64))
    return Sum(value, positions.size, repeats)


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


def parse_head(line: bytes, *, life: int, rank: int) -> World:
    """Return the world in a file's first line.

    Raises:
        FormatError: the line is not the head of this life's and rank's file.
    """
    head = parse_line(line)
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
    fields = parse_line(line)
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


def parse_sum(line: bytes) -> tuple[int, Sum]:
    """Return the number of steps in a running sum, and the sum.

    Raises:
        FormatError: a field is missing, of another type or out of range.
    """
    fields = parse_line(line)
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
    fields = parse_line(line)
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
    fields = parse_line(line)
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


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        FormatError: it is none.
    """
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


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with its segments; a line may end in a later segment, and the last may have no end.

    Lines of more than `MAX_LINE_BYTES` are yielded as far as that, and the rest as other lines.

    Raises:
        StoreError: the first cannot be opened.
        FormatError: one is not a plain file.
    """
    line = b""
    for number in count():
        part = path.with_name(segment_name(path.name, number))
        if number and not part.exists():
            break
        try:
            file = open_regular(part)
        except (StoreError, IsADirectoryError) as fault:
            raise FormatError(f"{part} is not a plain file: {fault.strerror}.", path=str(part)) from fault
        except OSError as fault:
            raise StoreError(f"ledger {part}: cannot be read: {fault.strerror}.", path=str(part)) from fault
        with file:
            while more := file.readline(MAX_LINE_BYTES + 1 - len(line)):
                line += more
                if line.endswith(b"\n") or len(line) > MAX_LINE_BYTES:
                    yield line
                    line = b""
    if line:
        yield line


# ------------------------------------------------------------------ writing


def claim_life(folder: str | Path) -> int:
    """Create the folder of a new life of the run, and return its number, which is unique and counts from 1.

    One process of a run claims the number and shares it with the other ranks.

    Args:
        folder: Folder of the ledger.

    Raises:
        StoreError: the folder cannot be written.

    Examples:
        >>> claim_life("runs/7/ledger"), claim_life("runs/7/ledger")
        (1, 2)
    """
    check_folder(folder)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        life = max((int(m[1]) for m in map(LIFE_FOLDER.fullmatch, os.listdir(folder)) if m), default=0)  # noqa: PTH208 - only names are needed
        while True:
            life += 1
            with suppress(FileExistsError):  # another process was faster
                _life_folder(folder, life).mkdir()
                return life
    except OSError as fault:
        raise StoreError(f"ledger {folder}: no life can be claimed there: {fault.strerror}.") from fault


def check_folder(folder: str | Path) -> None:
    """Check that a ledger's place is a path: as a path, the address of a store would be a folder in this one.

    Raises:
        StoreError: it is an address.
    """
    if _ADDRESS.match(str(folder)):
        raise StoreError(
            f"the ledger {folder} is an address, and a ledger is written and checked in a local folder: give a path. "
            "`smalti ledger check` fetches a ledger from a store; runs of `launch` and `train` with `log_samples` put "
            "theirs there."
        )


class LedgerWriter:
    """A writer of one rank's file of one life; not thread-safe. A context manager.

    Lines are passed to the operating system before a call returns: they survive the death of this process, but not a
    crash of the machine.

    Args:
        folder: the run's ledger, which all ranks may share.
        life: number of this start of the run, the same on all ranks; see `claim_life`.
        world: the world of the run, and the place of this rank in it.
        mode: `steps` writes a line for each step; `digest` keeps a running sum of 128 bits, and writes it at `mark` and
            at an epoch's end. It proves the same, but does not show which sample was wrong.

    Raises:
        StoreExists: this rank's file of that life exists.
        StoreError: the file cannot be written.

    Examples:
        >>> dataset = StreamingDataset(remote="s3://bucket/users", shuffle=True)
        >>> with LedgerWriter("runs/7/ledger", life=claim_life("runs/7/ledger"), world=World()) as ledger:
        ...     steps = len(list(StreamingDataLoader(dataset, batch_size=5, ledger=ledger)))
        >>> check_ledger("runs/7/ledger").ok
        True
    """

    def __init__(self, folder: str | Path, *, life: int, world: World, mode: str = "steps") -> None:
        if mode not in MODES:
            raise ArgumentError(f"`mode` must be one of {', '.join(MODES)}, found {mode!r}.")
        check_folder(folder)
        life_folder = _life_folder(Path(folder), life)
        self.path = life_folder / f"rank-{world.rank:05d}.jsonl"
        self._is_digest = mode == "digest"
        self.num_passes = 0
        """Number of passes begun."""
        self._steps = 0
        self._sum = Sum()
        self._unsummed: list[tuple[int, Ids, Ids]] = []
        self._descriptor = -1
        try:
            life_folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError as fault:
            raise StoreExists(
                f"ledger {self.path}: rank {world.rank} has written life {life} before; each start of a run needs a "
                "number of its own, from `claim_life`.",
                path=str(self.path),
            ) from fault
        except OSError as fault:
            raise self._failed(fault) from fault
        self._close = weakref.finalize(self, os.close, self._descriptor)
        versions = {"smalti": __version__, "numpy": np.__version__, "python": platform.python_version()}
        self._append({"smalti_ledger": LEDGER_VERSION, "life": life, "world": asdict(world), "versions": versions})

    def begin_pass(self, start: PassStart) -> None:
        """Record that an iteration begins. It supersedes samples after its cursor that were taken before.

        Raises:
            ValueError: the mode is `digest` and the order is MosaicML's, whose positions depend on the world.
        """
        if self._is_digest and start.cursor.algorithm != WINDOW:
            raise ArgumentError(
                f"mode 'digest' is not for MosaicML's order {start.cursor.algorithm!r}: a sum of its positions proves "
                "nothing; use mode 'steps'."
            )
        head = {"pass": self.num_passes, "batch_size": start.batch_size, "tail": start.tail}
        self._append({**head, "replication": start.replication, "cursor": start.cursor.to_state()})
        self.num_passes += 1
        self._steps, self._sum, self._unsummed = 0, Sum(), []

    def record(self, step: int, epoch: int, positions: Ids, ids: Ids, skipped: Sequence[SkippedSample] = ()) -> None:
        """Record the samples of one step, before the step takes effect.

        Args:
            step: steps since the pass began, 0-based.
            epoch: epoch of the pass.
            positions: int64, shape (n,): positions in the epoch's order, -1 for a repeat.
            ids: int64, shape (n,): sample ids.
            skipped: planned samples of the step that were not read; none of them is among `positions`.
        """
        positions, ids = np.asarray(positions), np.asarray(ids)
        if not self.num_passes or positions.ndim != 1 or positions.shape != ids.shape:
            raise ArgumentError(
                f"`positions` and `ids` of a step must be vectors of one length, after `begin_pass`; found shapes "
                f"{positions.shape} and {ids.shape}, and {self.num_passes} passes begun."
            )
        lines: list[dict[str, Any]] = []
        if skipped:
            samples = [[each.position, each.sample_id, each.shard, each.cause] for each in skipped]
            lines.append({"skipped": samples, "step": step, "epoch": epoch})
        if not self._is_digest:
            self._append(*lines, _step_line(step, epoch, positions, ids))
            return
        if skipped:
            self._append(*lines)
            positions = np.append(positions, np.array([each.position for each in skipped], np.int64))
            ids = np.append(ids, np.array([each.sample_id for each in skipped], np.int64))
        self._steps = step + 1
        self._unsummed.append((epoch, positions.copy(), ids.copy()))  # the caller may reuse the arrays
        if len(self._unsummed) == _STEPS_PER_SUM:
            self._update_sum()

    def mark(self) -> None:
        """Write the running sum in mode `digest`; call it on every rank after a step whose state is saved."""
        if self._is_digest and self._steps:
            self._update_sum()
            total = {"samples": self._sum.samples, "repeats": self._sum.repeats}
            self._append({"sum": f"{self._sum.value:032x}", "steps": self._steps, **total})

    def end_pass(self) -> None:
        """Record that the iteration reached the end of its epoch."""
        self.mark()
        self._append({"end": self.num_passes - 1})

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._close()
        self._descriptor = -1

    def __enter__(self) -> "LedgerWriter":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _update_sum(self) -> None:
        """Add the steps that were recorded since the last call to the sum."""
        for epoch in {epoch for epoch, _, _ in self._unsummed}:
            parts = [(positions, ids) for its_epoch, positions, ids in self._unsummed if its_epoch == epoch]
            positions, ids = map(np.concatenate, zip(*parts, strict=True))
            self._sum += sum_of(epoch, positions, ids)
        self._unsummed = []

    def _append(self, *lines: dict[str, Any]) -> None:
        texts = [json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines]
        unwritten = memoryview("".join(texts).encode("ascii"))
        try:
            while unwritten:
                unwritten = unwritten[os.write(self._descriptor, unwritten) :]
        except OSError as fault:
            raise self._failed(fault) from fault

    def _failed(self, fault: OSError) -> StoreError:
        return StoreError(
            f"ledger {self.path}: cannot be written: {fault.strerror}. Make room, or train without a ledger.",
            path=str(self.path),
        )


def _life_folder(folder: Path, life: int) -> Path:
    return folder / f"life-{life:05d}"


def _step_line(step: int, epoch: int, positions: Ids, ids: Ids) -> dict[str, Any]:
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
    return line
