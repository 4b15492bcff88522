"""Workers that are told a lot when they start, and die before they have heard it."""

import json
import multiprocessing
import pickle
import subprocess
import sys

import pytest

from smalti.torch.workers.handover import TaskArgument
from tests.shard_sets import write_set

pytestmark = [pytest.mark.torch, pytest.mark.process]

PROGRAM = """
import json, os, sys
from smalti.torch import StreamingDataLoader, StreamingDataset

class Deadly:
    "Unpickled, it ends the process."
    def __reduce__(self):
        return os._exit, (9,)

class Large(StreamingDataset):
    def __init__(self, **options):
        super().__init__(**options)
        self.told = [Deadly(), bytes(1 << 20)]

if __name__ == "__main__":
    loader = StreamingDataLoader(Large(remote=sys.argv[1]), 8, num_workers=2, worker_kind="process",
                                 multiprocessing_context=sys.argv[2], timeout=30)
    try:
        next(iter(loader))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("starting") / "root", 53))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_die_before_they_heard_their_task_are_an_error_and_no_hang(root, tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), root, method], capture_output=True, text=True, timeout=120, check=False
    )
    kind, message = json.loads(done.stdout.splitlines()[-1])
    assert kind == "TrainingError", done.stderr
    assert "exited with status 9" in message


def read_back(queue, handed):
    queue.put((type(handed).__name__, handed))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_is_handed_over_arrives_as_itself_in_each_process(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    with TaskArgument({"some": "value", "many": list(range(100_000))}) as handed:
        processes = [context.Process(target=read_back, args=(queue, handed)) for _ in range(2)]
        for process in processes:
            process.start()
    found = [queue.get() for _ in processes]
    for process in processes:
        process.join(30)
    assert found == [("dict", {"some": "value", "many": list(range(100_000))})] * 2


def test_it_goes_to_a_process_that_starts_and_nowhere_else():
    with TaskArgument("value") as handed, pytest.raises(TypeError, match="being started"):
        pickle.dumps(handed)
