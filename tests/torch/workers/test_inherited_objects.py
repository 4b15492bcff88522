"""Workers that are forked from a program with garbage: destructors run in the program that made the objects."""

import json
import subprocess
import sys

import pytest

from tests.shard_sets import write_set

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

PROGRAM = """
import gc, json, os, sys
from torch.utils.data import DataLoader
from smalti.torch import StreamingDataLoader, StreamingDataset

class OfProgram:
    "As torch's TCPStore is, whose destructor aborts a fork that has started a thread."
    def __init__(self):
        self.myself, self.pid = self, os.getpid()
    def __del__(self):
        if os.getpid() != self.pid:
            os.abort()

def collect(_):
    gc.collect()
    return _

gc.disable()  # only workers collect
OfProgram()
started = {"num_workers": 2, "multiprocessing_context": "fork"}
early = StreamingDataLoader(StreamingDataset(remote=sys.argv[1]), 8, worker_init_fn=collect, **started)
late = DataLoader(StreamingDataset(remote=sys.argv[1], batch_size=8, transform=collect), batch_size=8, **started)
print(json.dumps([len(list(loader)) for loader in (early, late)]))
"""


def test_forked_workers_never_destroy_unreachable_objects_of_their_program(tmp_path):
    """53 samples in batches of 8; a worker collects before it opens the set, and with each sample."""
    root = write_set(tmp_path / "root", 53)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root)], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [7, 7]
