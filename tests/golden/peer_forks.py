"""Run by MosaicML's interpreter: fork a process for each line of input, and print with which code it ended.

A line is a JSON list of a program and its arguments. To import MosaicML takes seconds, to fork none.
"""

import json
import os
import runpy
import signal
import sys
from contextlib import suppress

import streaming  # noqa: F401


def serve():
    """Fork for each line; return the line's program in the child, and None in this process at the end of input."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.setsid()
            os.dup2(2, 1)
            return json.loads(line)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with suppress(ProcessLookupError):  # the usual case: it left no process
            os.killpg(child, signal.SIGKILL)
        print(code, flush=True)
    return None


if (chosen := serve()) is not None:
    sys.argv = chosen
    runpy.run_path(chosen[0], run_name="__main__")
