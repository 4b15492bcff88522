"""Faults of processes that live on, and what is killed."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from benchmarks.soak.faults import Fault, Field, Heal, Impossible


def _paused(choose: Callable[[Field], list[int]]) -> Callable[[Field], Heal]:
    def plant(field: Field) -> Heal:
        found = choose(field)
        if not found:
            raise Impossible
        pid = field.random.choice(found)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

        def heal() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        return heal

    return plant


PROCESS_FAULTS = [
    Fault("worker_stopped", "a loader worker stopped for 3 s", _paused(lambda field: field.workers())),
    Fault("rank_stopped", "a rank stopped for 3 s", _paused(lambda field: field.ranks())),
]
"""In no order."""
