"""Runner of numbered, seeded cases; it reports the first that ends in anything but a value or a typed error.

A case is a function of (seed, number) alone, so a failure is replayed by

    python -m tests.hostile.harness index --seed SEED --first NUMBER --count 1
"""

import argparse
import mmap
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from tests.seeds import seed_of

SEED = seed_of(20241107)
"""Fixed, so that all versions of the code are tested with the same cases; SMALTI_SEED sets another."""
CASE_SECONDS = 2.0
"""CPU time that one case may take; a normal one takes less than a millisecond."""
SPARE_BYTES = 512 << 20
"""Address space that a run may allocate after the imports."""


@dataclass(frozen=True)
class Cases:
    """A range of numbered cases of one kind."""

    seed: int = SEED
    first: int = 0
    count: int = 1000


class Kind(Protocol):
    """A family of cases."""

    name: str

    def make(self, dice: Random) -> Any:
        """Make one damaged object."""

    def check(self, case: Any) -> str:
        """Return how the case ended, in a few words; raise `AssertionError` if a value breaks a guarantee."""

    def dump(self, case: Any) -> bytes:
        """Return its bytes, for a person to look at."""


def run(
    kind: Kind,
    cases: Cases,
    folder: Path,
    *,
    seconds: float = CASE_SECONDS,
    note: Callable[[int], None] | None = None,
) -> Counter[str]:
    """Run the cases, each made, checked and timed on its own, and count how they ended.

    Args:
        kind: What is damaged.
        cases: Their numbers.
        folder: Receives the bytes of a failing case.
        seconds: CPU time that one may take.
        note: Called with the number of each case before it begins.

    Raises:
        AssertionError: A case broke a guarantee, raised an untyped error or took too long; its bytes are in `folder`.
    """
    ended: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd images before it refuses them
        for number in range(cases.first, cases.first + cases.count):
            if note is not None:
                note(number)
            case = kind.make(Random(cases.seed << 32 | number))
            begin = time.thread_time()
            try:
                ended[kind.check(case)] += 1
            except Exception as error:
                raise AssertionError(_report(kind, (cases.seed, number), case, folder, repr(error)[:400])) from error
            if time.thread_time() - begin > seconds:
                raise AssertionError(_report(kind, (cases.seed, number), case, folder, f"took more than {seconds} s"))
    return ended


def limit_memory(spare: int = SPARE_BYTES) -> bool:
    """Limit the process to `spare` more bytes of address space; return False if the kernel cannot."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return False
    limit = pages * mmap.PAGESIZE + spare
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return True


def _report(kind: Kind, which: tuple[int, int], case: Any, folder: Path, what: str) -> str:
    seed, number = which
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind.name}-{seed}-{number}.bin"
    path.write_bytes(kind.dump(case))
    replay = f"python -m tests.hostile.harness {kind.name} --seed {seed} --first {number} --count 1"
    return f"{what}; its bytes are in {path}; replay: {replay}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases under a memory limit; print one line per kind of result."""
    from tests.hostile.kinds import KINDS

    parser = argparse.ArgumentParser(prog="python -m tests.hostile.harness")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("fuzz-failures"))
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    kind = KINDS[chosen.kind]
    kind.make(Random(0))  # imports and seed data come before the limit
    limited = limit_memory()
    with (chosen.folder / f"{chosen.kind}.at").open("w+b") as at:
        # Mapped, so that the number of the case survives a crash of the process.
        at.truncate(8)
        place = mmap.mmap(at.fileno(), 8)

        def note(number: int) -> None:
            place[:] = number.to_bytes(8, "little")

        ended = run(kind, Cases(chosen.seed, chosen.first, chosen.count), chosen.folder, note=note)
    for name, times in ended.most_common():
        print(f"{times:>8}  {name}")
    print(f"memory limit: {'yes' if limited else 'not on this system'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
