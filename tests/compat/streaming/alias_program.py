"""Run with `streaming` registered: print, for this process and each kind of child, what the name stands for."""

import json
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor


def facts():
    """Return what a third party finds here; a child reaches this line only if its import succeeded."""
    import importlib.metadata

    import streaming.base as base_there
    import streaming.base.constant
    from streaming.base.constant import TICK

    import smalti.compat.streaming.base.constant as ours

    return {
        "same": streaming.base.constant is ours and base_there is sys.modules["smalti.compat.streaming.base"],
        "name": streaming.base.constant.__spec__.name,
        "tick": TICK,
        "version": [streaming.__version__, importlib.metadata.version("mosaicml-streaming")],
    }


def from_child(method):
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        return pool.submit(facts).result(timeout=500)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        print(json.dumps(facts()))
    else:
        found = {method: from_child(method) for method in ("spawn", "forkserver", "fork")}  # fork last: it has threads
        command = [sys.executable, __file__, "child"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True).stdout
        print(json.dumps({"here": facts(), **found, "program": json.loads(told), "argv": sys.argv[1:]}))
