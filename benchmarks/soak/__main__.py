"""`python -m benchmarks.soak`: the soak, with its progress; exit status 1 when anything was wrong."""

import argparse
import datetime
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import machine_facts
from benchmarks.soak.pages import render
from benchmarks.soak.processes import MARK
from benchmarks.soak.scale import Options, disk_bytes
from benchmarks.soak.soaking import Soak
from benchmarks.soak.verdict import judge

PLANTS = ("wrong-byte", "state-ahead", "over-limit", "leaked-part", "leaked-process", "untyped")
"""What can be made to go wrong on purpose, to see that it is noticed."""
_INSIDE = "SMALTI_SOAK_INSIDE"
_SHM = Path("/dev/shm")
_OWN = 'mount -t tmpfs -o size="$0" none "$1" && mount -t tmpfs none /dev/shm && shift && exec "$@"'
"""Runs a command with a disk and shared memory of its own, which nobody else sees and which end with it."""


def main() -> int:
    """Runs it."""
    chosen = _parser().parse_args()
    if _INSIDE not in os.environ:
        return _outside(chosen)
    run, work = os.environ[MARK], Path(os.environ["SMALTI_SOAK_WORK"])
    options = Options(
        seconds=chosen.seconds,
        seed=chosen.seed,
        work=work,
        fault_every=chosen.fault_every,
        kill_every=chosen.kill_every,
        deadline=chosen.deadline,
        small=chosen.small,
        plants=tuple(chosen.plant),
        is_private=os.environ[_INSIDE] == "private",
    )
    soak = Soak(options, lambda line: print(line, flush=True), run)
    soak.soak()
    verdict = judge(soak, _SHM)
    soak.close()
    shards = sum(len(manifest.shards) for manifest in soak.manifests)
    facts = {
        "name": chosen.name,
        "command": shlex.join(["python", "-m", "benchmarks.soak", *sys.argv[1:]]),
        "seed": chosen.seed,
        "shards": shards,
        "machine": machine_facts(work),
    }
    if chosen.results:
        chosen.results.mkdir(parents=True, exist_ok=True)
        stem = f"{datetime.datetime.now(datetime.timezone.utc).date().isoformat()}-{chosen.name}"
        (chosen.results / f"{stem}.json").write_text(json.dumps({**facts, **verdict.to_dict()}, indent=1) + "\n")
        (chosen.results / f"{stem}.md").write_text(render(verdict, facts))
        print(f"written: {chosen.results / stem}.md and .json")
    told = f"{verdict.survived} of {verdict.injected} faults survived, {verdict.samples:,} samples checked"
    print(f"{'PASS' if not verdict.problems else 'FAIL'}: {told}")
    for problem in verdict.problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if verdict.problems else 0


def _outside(chosen: argparse.Namespace) -> int:
    """Runs the same program again, where it has a disk of its own if this system lets its users mount one."""
    work = Path(chosen.work or tempfile.mkdtemp(prefix="smalti-soak-"))
    for name in ("cache", "tmp"):
        (work / name).mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.soak", *sys.argv[1:]]
    size = disk_bytes(small=chosen.small)
    own = ["unshare", "-rm", "sh", "-c", _OWN, str(size), str(work / "cache")]
    is_private = shutil.which("unshare") is not None and _works([*own, "true"])
    environment = {
        **os.environ,
        MARK: secrets.token_hex(8),
        _INSIDE: "private" if is_private else "shared",
        "SMALTI_SOAK_WORK": str(work),
        "TMPDIR": str(work / "tmp"),
        "OMP_NUM_THREADS": "1",
    }
    if not is_private:
        print(
            "no disk of its own can be mounted here: a full disk is left out, shared memory is not judged", flush=True
        )
    status = subprocess.run([*(own if is_private else ()), *command], env=environment, check=False).returncode
    if not chosen.work and not (status and chosen.keep):
        shutil.rmtree(work, ignore_errors=True)
    elif not chosen.work:
        print(f"kept: {work}")
    return status


def _works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults, after all jobs have begun to read")
    parser.add_argument("--seed", type=int, default=0, help="of the plan of faults and kills")
    parser.add_argument("--fault-every", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--kill-every", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--deadline", type=float, default=150.0, help="seconds in which every job must go on")
    parser.add_argument("--small", action="store_true", help="an eighth of the data")
    parser.add_argument("--name", default="soak", help="of the report")
    parser.add_argument("--results", type=Path, help="folder of the report; none is written without")
    parser.add_argument("--work", help="folder for everything else, which stays; by default a temporary one")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder of a run that failed")
    parser.add_argument("--plant", action="append", default=[], choices=PLANTS, help="let this go wrong")
    return parser


if __name__ == "__main__":
    sys.exit(main())
