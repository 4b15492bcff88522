"""Run with `streaming` in place: run programs one after another, each in a forked process, so that torch loads once.

python run_programs.py TASKS.json      a list of [program, argument...]; the first that fails ends the run
"""

import json
import os
import runpy
import sys

import streaming.base.dataset  # noqa: F401 - before the forks
import torch  # noqa: F401


def run(program, arguments):
    """Run the program as a shell would; return its exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        tasks = json.load(file)
    for program, *arguments in tasks:
        status = run(program, arguments)
        if status:
            sys.exit(f"{program} {arguments} ended with {status}")
