"""Termination of child processes whose parent has died, whatever the processes do."""

import ctypes
import os
import signal
import sys
import threading
import time

POLL_SECONDS = 1.0
GRACE_SECONDS = 10.0
"""Time for a process whose parent has died to save its work."""

_PR_SET_PDEATHSIG = 1


def request_death_signal(number: signal.Signals) -> None:
    """Ask the kernel to send `number` to this process when its parent dies; a no-op except on Linux.

    The kernel sends it when the *thread* that started this process ends, so that thread has to wait for this process.
    The death of a parent before the call goes unnoticed: check for it after the call.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def end_with_parent(parent: int) -> None:
    """End this process when process `parent`, which started it, has died.

    The process gets SIGTERM, so that it can save its work, and exits `GRACE_SECONDS` later. On Linux the kernel sends
    SIGTERM at once; on all systems a thread checks for the parent every `POLL_SECONDS`.
    """
    request_death_signal(signal.SIGTERM)
    threading.Thread(target=_end_after, args=(parent,), name="smalti-orphan-watch", daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
