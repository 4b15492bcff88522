"""The lines of a ledger: made here, and checked here before they are believed.

{"smalti_ledger":1,"life":1,"world":{...},"versions":{...}}                     once, first
{"pass":0,"batch_size":4,"tail":"pad","replication":1,"cursor":{...}}           an iteration begins here
{"step":0,"epoch":0,"at":[3,2],"ids":[17,4],"repeats":[8]}                      positions 3 and 5, and one repeat
{"step":1,"epoch":0,"positions":[9,4],"ids":[11,2]}                             positions in no progression
{"end":0}                                                                       the iteration's epoch was finished
"""

import json
import platform
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from smalti import __version__
from smalti.cursor import Cursor
from smalti.errors import CursorError, FormatError, WorldMismatch
from smalti.ledger.sums import Ids, Sum
from smalti.world import World

LEDGER_VERSION = 1
MAX_LINE_BYTES = 1 << 26  # a step of four million samples; a longer line is no ledger's
MOSAIC_ORDERS = ("py1e", "py1br", "py1s", "py2s", "naive")
"""Algorithms whose positions depend on the world: a sample counts once in them, not a position."""
_MAX_NUMBER = 1 << 62
_SUM = re.compile("[0-9a-f]{32}")
# The line that nearly every step has, which is read four times as fast as JSON.
_PLAIN = re.compile(rb'\{"step":(\d{1,18}),"epoch":(\d{1,18}),"at":\[(\d{1,18}),(\d{1,11})\],"ids":\[(\d[\d,]*)\]\}\n')


@dataclass(frozen=True)
class PassStart:
    """One iteration over (the rest of) an epoch: where it begins and how its steps are cut."""

    cursor: Cursor
    batch_size: int
    """Samples per rank and step."""
    tail: str = "pad"
    """What becomes of an incomplete last step: `pad`, `short` or `drop`."""
    replication: int = 1
    """Consecutive ranks that take the same samples."""


@dataclass(frozen=True)
class Step:
    """What one rank took at one step of a pass."""

    step: int
    epoch: int
    positions: Ids
    """Places in the epoch's order, repeats left out."""
    ids: Ids
    """Sample ids, one for each position."""
    num_repeats: int


def head_line(life: int, world: World) -> bytes:
    """The first line of a rank's file."""
    versions = {"smalti": __version__, "numpy": np.__version__, "python": platform.python_version()}
    return _line({"smalti_ledger": LEDGER_VERSION, "life": life, "world": asdict(world), "versions": versions})


def pass_line(number: int, start: PassStart) -> bytes:
    """The line with which a pass begins."""
    head = {"pass": number, "batch_size": start.batch_size, "tail": start.tail, "replication": start.replication}
    return _line(head | {"cursor": start.cursor.to_state()})


def step_line(step: int, epoch: int, positions: Ids, ids: Ids) -> bytes:
    """The line of a step; -1 among the positions marks a repeat."""
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


def sum_line(steps: int, total: Sum) -> bytes:
    """The line of a running sum, after so many steps of a pass."""
    told = {"sum": f"{total.value:032x}", "steps": steps, "samples": total.samples, "repeats": total.repeats}
    return _line(told)


def end_line(number: int) -> bytes:
    """The line with which a pass ends that was not cut short."""
    return _line({"end": number})


def parse_head(line: bytes, *, life: int, rank: int) -> World:
    """The world that a file's first line tells, if it is the head of that life's and rank's file.

    Raises:
        FormatError: it is not; the message says what was found.
    """
    head = _parse(line)
    version = head.get("smalti_ledger")
    if type(version) is not int or version < 1:
        raise FormatError("not the head of a ledger: no whole number `smalti_ledger` in it.")
    if version > LEDGER_VERSION:
        raise FormatError(f"written as ledger version {version}, this Smalti reads up to {LEDGER_VERSION}: upgrade it.")
    told = head.get("world")
    names = World.__dataclass_fields__
    if not isinstance(told, dict) or set(told) != set(names) or any(type(told[name]) is not int for name in names):
        raise FormatError(f"a head whose `world` is not {', '.join(names)} as whole numbers.")
    try:
        world = World(**told)
    except WorldMismatch as fault:
        raise FormatError(f"a head with an impossible world: {fault}") from fault
    if head.get("life") != life or world.rank != rank:
        raise FormatError(
            f"the file is named for life {life} and rank {rank}, its head says life {head.get('life')!r:.20} and rank "
            f"{world.rank}: it was copied or renamed."
        )
    return world


def parse_pass(line: bytes, *, number: int) -> PassStart:
    """The start of the pass that must be the `number`-th of its file.

    Raises:
        FormatError: it is not, or a field is missing or out of range.
    """
    told = _parse(line)
    if told.get("pass") != number:
        raise FormatError(f"pass {told.get('pass')!r:.20} begins where pass {number} is due: lines are lost.")
    state = told.get("cursor")
    if not isinstance(state, dict):
        raise FormatError("a pass without a `cursor`.")
    try:
        cursor = Cursor.from_state(state)
    except CursorError as fault:
        raise FormatError(f"a pass with a damaged cursor: {fault}") from fault
    tail = told.get("tail")
    if tail not in ("pad", "short", "drop"):
        raise FormatError("a pass whose `tail` is none of pad, short, drop.")
    return PassStart(cursor, _whole(told, "batch_size", low=1), tail, _whole(told, "replication", low=1))


def parse_end(line: bytes, *, number: int) -> None:
    """Checks that a line ends the pass that stands open.

    Raises:
        FormatError: it ends another one.
    """
    if _parse(line) != {"end": number}:
        raise FormatError(f"a line that ends another pass than {number}, which stands open.")


def parse_sum(line: bytes) -> tuple[int, Sum]:
    """The steps after which a running sum was written, and the sum.

    Raises:
        FormatError: a field is missing, of another type or out of range.
    """
    told = _parse(line)
    value = told.get("sum")
    if not isinstance(value, str) or _SUM.fullmatch(value) is None:
        raise FormatError("a `sum` that is not 32 hexadecimal digits.")
    total = Sum(int(value, 16), _whole(told, "samples", low=0), _whole(told, "repeats", low=0))
    return _whole(told, "steps", low=1), total


def parse_step(line: bytes) -> Step:
    """What a step's line tells.

    Raises:
        FormatError: a field is missing, of another type or out of range.
    """
    plain = _PLAIN.fullmatch(line)
    if plain is not None and b",," not in line and not plain[5].endswith(b","):
        ids = np.fromstring(plain[5], dtype=np.int64, sep=",")
        if ids.max() < _MAX_NUMBER:  # more digits than fit give the greatest number there is
            positions = _progression(int(plain[3]), int(plain[4]), ids.size)
            return Step(int(plain[1]), int(plain[2]), positions, ids, 0)
    told = _parse(line)
    ids = _numbers(told, "ids")
    if "at" in told:
        at = _numbers(told, "at").tolist()
        if len(at) != 2:
            raise FormatError("a step whose `at` is not [first position, stride].")
        positions = _progression(at[0], at[1], ids.size)
    else:
        positions = _numbers(told, "positions")
    if positions.size != ids.size:
        raise FormatError(f"a step of {positions.size} positions and {ids.size} ids.")
    repeats = _numbers(told, "repeats").size if "repeats" in told else 0
    return Step(_whole(told, "step", low=0), _whole(told, "epoch", low=0), positions, ids, repeats)


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


def _whole(told: dict[str, Any], key: str, *, low: int) -> int:
    value = told.get(key)
    if type(value) is not int or not low <= value < _MAX_NUMBER:
        raise FormatError(f"`{key}` is not a whole number from {low}.")
    return value


def _numbers(told: dict[str, Any], key: str) -> Ids:
    value = told.get(key)
    if value == []:
        return np.empty(0, dtype=np.int64)
    try:
        numbers = np.array(value)
    except (ValueError, OverflowError) as fault:
        raise FormatError(f"`{key}` is not a list of whole numbers.") from fault
    if numbers.ndim != 1 or numbers.dtype != np.int64 or numbers.min() < 0 or numbers.max() >= _MAX_NUMBER:
        raise FormatError(f"`{key}` is not a list of whole numbers from 0.")
    return numbers
