"""One measurement as a value: what the parent asks of a child process, and what it is told."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.interface import WriteOptions
from benchmarks.workloads import Data, Workload

Figures = dict[str, Any]
"""Names of figures, with the unit in the name, to numbers."""

_WRITERS = {
    "litfull": "litdata", "smalti-plain": "smalti", "smalti-sparse": "smalti",
    "smalti-torch": "smalti", "sol": "solb", "decode": "solb",
    "link": "smalti", "link-disk": "smalti",
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What one child process does."""

    measure: str
    """A key of `benchmarks.measures.MEASURES`."""
    peer: str
    """A key of `benchmarks.peers.KNOWN`."""
    workload: str
    samples: int
    work_dir: str
    """Folder for sets and scratch files."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For the measure; JSON."""

    @property
    def work(self) -> Path:
        """The folder as a path."""
        return Path(self.work_dir)

    @property
    def scratch(self) -> Path:
        """Folder on the measured disk that is emptied before and after every task, however it ended."""
        return self.work / "scratch"

    @property
    def aside_file(self) -> Path:
        """Number of a process below the one that measures whose memory does not count: a server."""
        return self.scratch / "aside.pid"

    @property
    def data(self) -> Data:
        """The samples."""
        return Data(self.kind, self.work / "cache")

    @property
    def kind(self) -> Workload:
        """The workload at this size."""
        return Workload(self.workload, self.samples)

    @property
    def set_folder(self) -> Path:
        """Where the set that this task reads lies: written once, before anything is measured."""
        shard = f"-{self.options['shard_bytes']}" if "shard_bytes" in self.options else ""
        return self.work / "sets" / f"{self.writer}-{self.workload}-{self.samples}{shard}"

    @property
    def write_options(self) -> WriteOptions:
        """How that set is written."""
        return WriteOptions(shard_bytes=int(self.options.get("shard_bytes", WriteOptions.shard_bytes)))

    @property
    def writer(self) -> str:
        """Who writes that set: some read what another one has written."""
        if "set_of" in self.options:
            return str(self.options["set_of"])
        return _WRITERS.get(self.peer, self.peer)

    def linked_folder(self, copies: int) -> Path:
        """Where the set of that many links of one shard lies."""
        return self.work / "sets" / f"{self.peer}-{self.workload}-{self.samples}x{copies}"

    @property
    def opened_folder(self) -> Path:
        """The set that is opened: of links where `copies` are asked for."""
        return self.linked_folder(int(self.options["copies"])) if "copies" in self.options else self.set_folder

    @property
    def opened_kind(self) -> Workload:
        """What that set holds."""
        return Workload(self.workload, self.samples * int(self.options.get("copies", 1)))

    @property
    def filled_cache(self) -> Path:
        """The cache of that set, when it was read over a link and all of it is there."""
        return self.work / "caches" / self.set_folder.name

    @property
    def state_file(self) -> Path:
        """Where the state of a loader over that set lies, for a new process to continue from."""
        workers = self.options.get("workers", 0)
        taken = f"-{self.options['taken']}" if "taken" in self.options else ""
        return self.work / "states" / f"{self.peer}-{self.opened_folder.name}-{workers}w{taken}.json"

    def to_json(self) -> dict[str, Any]:
        """As a child process gets it."""
        return dataclasses.asdict(self)
