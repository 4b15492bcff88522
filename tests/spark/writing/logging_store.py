"""A folder that logs its puts and syncs in a file that all processes share."""

import os
import signal

from smalti.errors import StoreError
from smalti.storage import LocalStore
from smalti.storage.store import Disk

HERE = Disk("this kernel", 1, 2)


class LoggingStore(LocalStore):
    """A log line `op key pid` when a call has returned; `fails` makes every `sync` fail as a broken disk does.

    The first process that puts a second shard is killed, if there is to be the file `killed` then.
    """

    def __init__(self, root, log, *, fails=False, killed=None):
        super().__init__(root)
        self.log, self.fails, self.killed = log, fails, killed

    def disk(self):
        return HERE

    def put(self, key, data):
        super().put(key, data)
        self._note("put", key)

    def put_unsynced(self, key, data):
        super().put_unsynced(key, data)
        self._note("put_unsynced", key)
        if self.killed is not None and key.endswith("shard.00001.mds") and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def sync(self, keys):
        if self.fails:
            raise StoreError("cannot sync shard.00000.mds: Input/output error")
        super().sync(keys)
        for key in keys:
            self._note("sync", key)

    def put_if_absent(self, key, data):
        super().put_if_absent(key, data)
        self._note("put_if_absent", key)

    def lines(self):
        """All calls, as (op, key, pid)."""
        return [tuple(line.split()) for line in self.log.read_text().splitlines()]

    def keys(self, op):
        """Of the shards that `op` was called for, in order."""
        return [key for found, key, _ in self.lines() if found == op and key.endswith(".mds")]

    def _note(self, op, key):
        # One write in append mode: lines of several processes do not mix.
        with self.log.open("ab", buffering=0) as file:
            file.write(f"{op} {key} {os.getpid()}\n".encode())
