"""One real run beside its simulation: ranks of one host read a set through a slow link, with and without room.

    python -m benchmarks.fleet.validation          about two minutes

The link is that of `benchmarks.link`: an S3 server on this machine with a latency before each reply and a bandwidth for
all connections together. Training is a sleep, after which the ranks wait for each other, as ranks do that exchange
gradients: the cache expects ranks to be at the same step. Small steps and shards keep the processors idle, so that the
link and the order decide; what is left between the two is named in docs/scale.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed

from benchmarks.environment import ROOT
from benchmarks.fleet.report import table
from benchmarks.fleet.setting import DataSet, Fleet, Order, Store
from benchmarks.fleet.simulation import simulate
from benchmarks.link.server import num_bytes_sent, of_shards
from smalti.cache import CacheOptions
from smalti.dataset import OrderOptions
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.writer import MDSWriter
from tests.faultstore import FaultStore, Toxic

_EPOCHS = 2
_START_S = 6.0  # until the ranks are started and have imported everything
_DEADLINE_S = 300.0
_SHOWN = {"mb": 0, "requests": 0, "first_batch_s": 2, "seconds": 1, "stall_s": 2}


@dataclass(frozen=True)
class Case:
    """One run: a set, the ranks of a host, an order and a link."""

    name: str
    cache_share: float | None
    """Cache as a part of the set; None for no limit."""
    ranks: int = 2
    workers: int = 2
    samples: int = 16_384
    sample_bytes: int = 8_192
    shard_samples: int = 128
    batch_size: int = 32
    samples_per_s: float = 1_000.0
    """Of one rank."""
    canonical_nodes: int = 8
    block_size: int = 256
    latency_s: float = 0.03
    bytes_per_s: float = 50e6

    @property
    def cache_bytes(self) -> int | None:
        """Cache of the host."""
        return None if self.cache_share is None else int(self.cache_share * self.samples * self.sample_bytes)


CASES = (
    Case("no limit", None),
    Case("cache of a half", 0.5),
    Case("cache of a quarter", 0.25),
)


def write_set(folder: Path, case: Case) -> DataSet:
    """Write a set of noise for a case, and return it as it is simulated."""
    noise = np.random.default_rng(1).bytes(case.sample_bytes + case.samples)
    body = case.sample_bytes - 4 * 3  # offset, and sizes of the sample's columns
    limit = case.shard_samples * case.sample_bytes + 256
    with MDSWriter(out=str(folder), columns={"number": "int32", "noise": "bytes"}, size_limit=limit) as writer:
        for number in range(case.samples):
            writer.write({"number": number, "noise": noise[number : number + body - 4]})
    shards = sorted(folder.rglob("*.mds"))
    found = -(-case.samples // len(shards))
    return DataSet("noise", case.samples, sum(map(_size, shards)) // case.samples, found)


def _size(path: Path) -> int:
    return path.stat().st_size


def measure(case: Case, folder: Path, scratch: Path) -> list[dict[str, float]]:
    """Return the figures of each epoch of a real run from an empty cache."""
    cache = str(scratch / "cache")
    with FaultStore(folder=folder, own_process=True) as server:
        server.plant(Toxic("latency", seconds=case.latency_s), Toxic("bandwidth", rate=case.bytes_per_s))
        environment = os.environ | server.environment | {"AWS_EC2_METADATA_DISABLED": "true"}
        environment |= {"AWS_DEFAULT_REGION": "us-east-1"}
        command = [
            sys.executable, "-m", "benchmarks.fleet.validation", "--rank", json.dumps(asdict(case)),
            "--url", f"s3://{server.bucket}", "--cache", cache, "--start", str(time.time() + _START_S),
        ]  # fmt: skip
        ranks = [
            subprocess.Popen(command, cwd=ROOT, env=environment | _launched(rank, case.ranks), stdout=subprocess.PIPE)
            for rank in range(case.ranks)
        ]
        told = []
        for rank in ranks:
            out, _ = rank.communicate(timeout=_DEADLINE_S)
            if rank.returncode:
                raise RuntimeError(f"a rank of the run {case.name!r} ended with status {rank.returncode}")
            told.append(json.loads(out))
        log = of_shards(server.log())
        figures = []
        for epoch in range(_EPOCHS):
            begin, end = (pick(each[epoch][key] for each in told) for key, pick in (("begin", min), ("end", max)))
            here = [entry for entry in log if begin <= entry.began < end]
            figures.append(
                {
                    "mb": num_bytes_sent(here) / 1e6,
                    "requests": len(here),
                    "first_batch_s": max(each[epoch]["first_batch_s"] for each in told),
                    "seconds": end - begin,
                    "stall_s": max(each[epoch]["stall_s"] for each in told),
                }
            )
    shutil.rmtree(cache, ignore_errors=True)
    return figures


def predict(case: Case, data: DataSet) -> list[dict[str, float]]:
    """Return the same figures by the simulation."""
    fleet = Fleet(
        hosts=1, ranks=case.ranks, batch_size=case.batch_size, workers=case.workers, batches_ahead=2 * case.workers + 1,
        samples_per_s=case.samples_per_s, cache_bytes=case.cache_bytes,
    )  # fmt: skip
    store = Store(case.latency_s, 0.0, case.bytes_per_s, case.bytes_per_s, 1e12, 1e9)
    order = Order("window", case.canonical_nodes, case.block_size)
    found = simulate(data, fleet, order, store, epochs=_EPOCHS)
    return [
        {
            "mb": epoch.bytes_per_host / 1e6,
            "requests": epoch.fetches,
            "first_batch_s": epoch.first_batch_s,
            "seconds": epoch.seconds,
            "stall_s": epoch.stall_s,
        }
        for epoch in found.epochs
    ]


def _launched(rank: int, ranks: int) -> dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(value) for name, value in names.items()}


def read_as_rank(case: Case, url: str, cache: str, start: float) -> list[dict[str, float]]:
    """Read all epochs as one rank; the world is in the environment. Ranks begin at one time, `start`."""
    time.sleep(max(0.0, start - time.time()))
    opened = time.time()
    dataset = StreamingDataset(
        remote=url,
        cache=CacheOptions(local=cache, cache_limit=case.cache_bytes),
        batch_size=case.batch_size,
        shuffle=True,
        order=OrderOptions(num_canonical_nodes=case.canonical_nodes, shuffle_block_size=case.block_size),
    )
    loader = StreamingDataLoader(dataset, batch_size=case.batch_size, num_workers=case.workers, worker_kind="thread")
    meeting = Path(cache).with_name(f"ranks-{start}").as_uri()
    torch.distributed.init_process_group("gloo", meeting, rank=int(os.environ["RANK"]), world_size=case.ranks)
    step_s, found = case.batch_size / case.samples_per_s, []
    for epoch in range(_EPOCHS):
        begin, waits = opened if epoch == 0 else time.time(), []
        before = begin
        for _ in loader:
            waits.append(time.time() - before)
            time.sleep(step_s)
            torch.distributed.barrier()
            before = time.time()
        found.append({"begin": begin, "end": before, "first_batch_s": waits[0], "stall_s": sum(waits[1:])})
    dataset.close()
    torch.distributed.destroy_process_group()
    return found


def compare(cases: tuple[Case, ...], scratch: Path) -> list[dict[str, Any]]:
    """Return measured and simulated figures of every case, epoch by epoch."""
    folder = scratch / "set"
    data = write_set(folder, cases[0])
    found = []
    for case in cases:
        pairs = zip(measure(case, folder, scratch), predict(case, data), strict=True)
        epochs = [{"measured": measured, "simulated": simulated} for measured, simulated in pairs]
        found.append({"case": asdict(case), "epochs": epochs})
        for number, epoch in enumerate(epochs, start=1):
            told = "   ".join(
                f"{key} {epoch['measured'][key]:,.2f} ({epoch['simulated'][key]:,.2f})" for key in epoch["measured"]
            )
            print(f"{case.name}, epoch {number}: {told}", flush=True)
    return found


def report_of(found: list[dict[str, Any]]) -> str:
    """Return a table of measured figures, with the simulated ones in brackets."""
    rows = []
    for run in found:
        for number, epoch in enumerate(run["epochs"], start=1):
            pairs = [(epoch["measured"][key], epoch["simulated"][key]) for key in _SHOWN]
            shown = (f"{measured:,.{_SHOWN[key]}f} ({simulated:,.{_SHOWN[key]}f})" for key, (measured, simulated) in
                     zip(_SHOWN, pairs, strict=True))  # fmt: skip
            rows.append((run["case"]["name"], str(number), *shown))
    header = ("run", "epoch", "MB fetched", "requests", "first batch, s", "epoch, s", "waiting after the first, s")
    return "# Simulated and measured\n\n### validation\n\n" + table(header, rows) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run all cases, print measured figures with the simulated ones in brackets, and store them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    parser.add_argument("--quick", action="store_true", help="one case of a small set")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    for name in ("--url", "--cache"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--start", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank:
        print(json.dumps(read_as_rank(Case(**json.loads(options.rank)), options.url, options.cache, options.start)))
        return
    cases = (replace(CASES[1], samples=2_048, samples_per_s=4_000.0, block_size=64),) if options.quick else CASES
    with tempfile.TemporaryDirectory(prefix="smalti-fleet-") as scratch:
        found = compare(cases, Path(scratch))
    if options.results:
        options.results.write_text(json.dumps(found, indent=1) + "\n")
        options.results.with_suffix(".md").write_text(report_of(found))


if __name__ == "__main__":
    main()
