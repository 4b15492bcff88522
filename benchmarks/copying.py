"""Copies of a version against a plain parallel copy of the same objects, as a ratio of times.

    python -m benchmarks.copying --mb 256 --rounds 5

The plain copy gets each object and puts it, with as many threads and the same clients; it hashes nothing, looks at no
size and publishes nothing. Rounds alternate between the two, so that both meet the same load. The S3 server is a
process of this machine.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smalti.catalog import load_manifest
from smalti.exchange import CopyOptions, copy_version
from smalti.storage import Store, open_store
from smalti.writer import MDSWriter

WORKERS = 8
SHARD_BYTES = 8 << 20
SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Case:
    """A pair of stores."""

    name: str
    source: Store
    make_target: Callable[[int], Store]


def write_source(folder: Path, megabytes: int) -> None:
    """Write random samples of a megabyte, in shards of eight."""
    draws = np.random.default_rng(0)
    with MDSWriter(out=str(folder), columns={"data": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for _ in range(megabytes):
            writer.write({"data": draws.bytes(SAMPLE_BYTES - 64)})


def copy_plainly(source: Store, target: Store) -> None:
    """Get and put every object of the newest version."""
    keys = [shard.stored.basename for shard in load_manifest(source).shards]
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda key: target.put(key, source.get(key)), keys))


def copy_verified(source: Store, target: Store) -> None:
    """Copy the newest version with all checks, and publish it."""
    copy_version(source, target, options=CopyOptions(max_workers=WORKERS))


def seconds(run: Callable[[Store, Store], None], source: Store, target: Store) -> float:
    """Return the time of one copy, and remove it."""
    began = time.perf_counter()
    run(source, target)
    took = time.perf_counter() - began
    path = target.local_path("x")
    if path is not None:
        shutil.rmtree(path.parent)
    else:
        for info in list(target.list()):
            target.delete(info.key)
    return took


@contextmanager
def cases(folder: Path, megabytes: int) -> Iterator[list[Case]]:
    """Yield the pairs: disk and S3 in all directions."""
    from tests.faultstore import FaultStore

    write_source(folder / "source", megabytes)
    with ExitStack() as stack:
        server = stack.enter_context(FaultStore(own_process=True))
        disk, remote = open_store(folder / "source"), server.open("source")
        copy_version(disk, remote)
        here = lambda number: open_store(folder / f"copy-{number}")  # noqa: E731
        there = lambda number: server.open(f"copy-{number}")  # noqa: E731
        yield [
            Case("disk to disk", disk, here),
            Case("disk to S3", disk, there),
            Case("S3 to disk", remote, here),
            Case("S3 to S3", remote, there),
        ]


def measure(megabytes: int, rounds: int) -> list[tuple[str, float, float]]:
    """Return for each case its name and the medians of the plain and the verified copy, seconds."""
    found = []
    with tempfile.TemporaryDirectory(prefix="smalti-copying-") as folder, cases(Path(folder), megabytes) as listed:
        for case in listed:
            times: dict[Callable[[Store, Store], None], list[float]] = {copy_plainly: [], copy_verified: []}
            for number in range(rounds + 1):
                for run, taken in times.items():
                    took = seconds(run, case.source, case.make_target(number))
                    if number:  # the first round warms up
                        taken.append(took)
            plain, verified = (statistics.median(taken) for taken in times.values())
            found.append((case.name, plain, verified))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    print("| copy | plain, s | verified and published, s | ratio of the speeds |\n|---|---|---|---|")
    for name, plain, verified in measure(chosen.mb, chosen.rounds):
        print(f"| {name} | {plain:.2f} | {verified:.2f} | {plain / verified:.2f} |")


if __name__ == "__main__":
    main()
