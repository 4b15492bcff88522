"""What made a rank fail, left in the run's folder for the one who started it.

TorchDistributor loses it: its wrapper around torchrun forgets the exit code, and the error says no more than "failed".
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

_FIELDS = {"rank": int, "time": float, "reason": str, "trace": str, "lost_peer": bool}
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "is gone or late", "Timed out waiting")


@dataclass(frozen=True)
class Failure:
    """Why the run ended, as far as the ranks could tell."""

    rank: int
    reason: str
    """The error in one line."""
    trace: str
    """The end of its traceback; empty if the rank left none."""


@contextlib.contextmanager
def failures_recorded(run_dir: Path) -> Iterator[None]:
    """Writes down what the body raises, and lets it pass."""
    try:
        yield
    except Exception as error:
        rank = detect_world().rank
        record = {
            "rank": rank,
            "time": time.time(),
            "reason": f"{type(error).__name__}: {error}",
            "trace": "".join(traceback.format_exception(error))[-8_000:],
            "lost_peer": isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST_PEER),
        }
        with contextlib.suppress(OSError):  # on a full disk the error itself matters more than its record
            run_dir.mkdir(parents=True, exist_ok=True)
            replace_json(run_dir / f"failure-rank{rank}.json", record)
        raise


def forget_failures(run_dir: Path) -> None:
    """Removes what earlier lives left."""
    for path in run_dir.glob("failure-rank*.json"):
        path.unlink(missing_ok=True)


def read_failure(run_dir: Path, num_ranks: int) -> Failure | None:
    """The failure that came first, or None where no rank could tell.

    A rank that only lost another one is not to blame while there is a better reason, or a rank that left no word at
    all: that one was killed.
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
        with contextlib.suppress(CheckpointError):  # a file that a kill left half written tells nothing
            record = read_json(path)
            if all(type(record.get(name)) is kind for name, kind in _FIELDS.items()):
                yield record
