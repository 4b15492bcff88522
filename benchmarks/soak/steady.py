"""The reader that lives from the start of the soak to its end, and reads on after each typed error, in its process.

It opens the newest version of the set of news for each epoch, reads it with threads, and closes it: what leaks shows in
its memory and descriptors. `python -m benchmarks.soak.steady FOLDER '{...}'`
"""

import ctypes
import faulthandler
import gc
import json
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.soak.journal import Journal
from benchmarks.soak.reading import open_dataset, save_state, saved_state, steps, tell_stats
from benchmarks.soak.samples import Expected
from benchmarks.soak.told import Reads, reads_of
from smalti.errors import SmaltiError
from smalti.torch import StreamingDataLoader
from smalti.torch.loader import open_ledger

SAVE_EVERY = 5  # steps
_PAUSE_SECONDS = 0.3


def main() -> None:
    """Until SIGTERM."""
    folder, given = Path(sys.argv[1]), json.loads(sys.argv[2])
    reads, journal, asked = reads_of(given), Journal(folder / "journal.jsonl"), threading.Event()
    with Path(folder, "stacks").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        signal.signal(signal.SIGTERM, lambda *_: asked.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        while not asked.is_set():
            _tidy_memory()
            try:
                _read_newest(folder, reads, journal, asked)
            except SmaltiError as error:
                journal.write("error", kind=type(error).__name__, typed=True, message=str(error))
                asked.wait(_PAUSE_SECONDS)
        faulthandler.unregister(signal.SIGUSR1)
    journal.write("end")
    journal.close()


def _tidy_memory() -> None:
    """What Python and the C library merely keep for later is no leak."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _read_newest(folder: Path, reads: Reads, journal: Journal, asked: threading.Event) -> None:
    dataset = open_dataset(reads)
    try:
        manifest = dataset.manifest
        version, write = manifest.version, int(manifest.metadata["write"])
        state = folder / f"state-{version}.json"
        with open_ledger(folder / f"ledger-{version}", dataset.world) as ledger:
            loader = StreamingDataLoader(dataset, reads.batch_size, ledger=ledger, **reads.loader)
            before: dict[str, Any] | None = saved_state(state)
            if before is not None:
                loader.load_state_dict(before)
            journal.write("begin", state=before, version=version, digest=manifest.digest)
            taking = steps(loader, ledger, Expected(reads.streams, write), journal)
            for number in taking:
                if asked.is_set() or number % SAVE_EVERY == 0:
                    save_state(state, loader.state_dict())
                if asked.is_set():
                    break
            else:
                save_state(state, loader.state_dict())
            taking.close()
            tell_stats(dataset, journal)
    finally:
        dataset.close()


if __name__ == "__main__":
    main()
