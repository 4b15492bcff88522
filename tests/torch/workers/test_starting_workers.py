"""Workers with large arguments that die before they have read them."""

import json
import multiprocessing
import pickle
import subprocess
import sys

import pytest

from smalti.torch.worker_processes import TaskArgument
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
                                 multiprocessing_context=sys.argv[2], timeout=500)
    try:
        next(iter(loader))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("starting") / "root", 53))


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.nightly), "forkserver"])
def test_workers_that_die_before_they_read_their_arguments_are_an_error_and_no_hang(root, tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), root, method], capture_output=True, text=True, timeout=500, check=False
    )
    kind, message = json.loads(done.stdout.splitlines()[-1])
    assert kind == "TrainingError", done.stderr
    assert "exited with status 9" in message


def read_back(queue, argument):
    queue.put((type(argument).__name__, argument))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_each_process_receives_the_value_of_the_argument(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    with TaskArgument({"some": "value", "many": list(range(100_000))}) as argument:
        processes = [context.Process(target=read_back, args=(queue, argument)) for _ in range(2)]
        for process in processes:
            process.start()
    found = [queue.get() for _ in processes]
    for process in processes:
        process.join(280)
    assert found == [("dict", {"some": "value", "many": list(range(100_000))})] * 2


def test_an_argument_can_be_pickled_only_for_a_process_that_is_being_started():
    with TaskArgument("value") as argument, pytest.raises(TypeError, match="being started"):
        pickle.dumps(argument)
