"""Records of failed ranks, written into the run's folder for the process that started the run.

TorchDistributor reports no cause: its wrapper around torchrun drops the exit code, and its error is only "failed".
"""

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from smalti.errors import CheckpointError
from smalti.torch.train.checkpoint import read_json, replace_json
from smalti.world import detect_world

_TRACE_CHARS = 8_000  # end of a traceback that is kept
_FIELDS = {"rank": int, "time": float, "reason": str, "trace": str, "lost_peer": bool}
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "is gone or late", "Timed out waiting")


@dataclass(frozen=True)
class Failure:
    """The cause of a failed run, as far as it is known."""

    rank: int
    reason: str
    """The error in one line."""
    trace: str
    """The end of the traceback; empty if there is none."""


@contextlib.contextmanager
def failures_recorded(run_dir: Path) -> Iterator[None]:
    """Record an exception of the body in the run's folder, and let it propagate."""
    try:
        yield
    except Exception as error:
        rank = detect_world().rank
        record = {
            "rank": rank,
            "time": time.time(),
            "reason": f"{type(error).__name__}: {error}",
            "trace": "".join(traceback.format_exception(error))[-_TRACE_CHARS:],
            "lost_peer": isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST_PEER),
        }
        with contextlib.suppress(OSError):  # best effort: the error itself matters more than its record
            run_dir.mkdir(parents=True, exist_ok=True)
            replace_json(run_dir / f"failure-rank{rank}.json", record)
        raise


def remove_failures(run_dir: Path) -> None:
    """Remove the records of earlier lives."""
    for path in run_dir.glob("failure-rank*.json"):
        path.unlink(missing_ok=True)


def read_failure(run_dir: Path, num_ranks: int) -> Failure | None:
    """Return the first failure, or None if no rank left a record.

    A rank that only lost the connection to another one is not the cause if some rank failed for another reason, or left
    no record: a rank without a record was killed.
    """
    records = sorted(_records(run_dir), key=lambda record: record["time"])
    own = [record for record in records if not record["lost_peer"]]
    if own:
        return Failure(own[0]["rank"], own[0]["reason"], own[0]["trace"])
    silent = sorted(set(range(num_ranks)) - {record["rank"] for record in records})
    if records and silent:
        return Failure(silent[0], "it was killed: the other ranks lost the connection to it", "")
    return Failure(records[0]["rank"], records[0]["reason"], records[0]["trace"]) if records else None


def _records(run_dir: Path) -> Iterator[dict[str, Any]]:
    for path in run_dir.glob("failure-rank*.json"):
        with contextlib.suppress(CheckpointError):  # the rank was killed while it wrote the file
            record = read_json(path)
            if all(type(record.get(name)) is kind for name, kind in _FIELDS.items()):
                yield record
