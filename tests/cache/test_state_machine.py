"""A state machine over a cache, its folder and its store: every read returns the right bytes or a typed error."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from smalti.cache import CacheOptions, ShardCache, ShardSource
from smalti.errors import ChecksumMismatch, ShardNotFound, StoreError
from smalti.format import Schema, ShardBuilder, ShardOptions
from tests.cache.conftest import COLUMNS, DIGEST
from tests.stores import MemoryStore

SHARDS = st.integers(0, 3)
ROWS = 3


def build(compression):
    """Build four shards of three rows; return them with their stored bytes."""
    infos, payloads = [], {}
    for number in range(4):
        builder = ShardBuilder(Schema.from_columns(COLUMNS), ShardOptions(compression=compression))
        for row in range(ROWS):
            builder.add({"id": number * ROWS + row, "text": "x" * row})
        [filled] = builder.finish()
        built = filled.seal()
        info = replace(built.info.with_prefix(f"w/{number}"))
        infos.append(info)
        payloads[info.stored.basename] = bytes(built.payloads[0])
    return infos, payloads


class CacheMachine(RuleBasedStateMachine):
    """Fetching, damage, repairs, restarts and losses in any order."""

    @initialize(compression=st.sampled_from([None, "zstd"]))
    def start(self, compression):
        self.infos, self.good = build(compression)
        self.store = MemoryStore()
        self.store.objects.update(self.good)
        self.folder = Path(tempfile.mkdtemp(prefix="smalti-machine-"))
        self.restart()

    @rule()
    def restart(self):
        options = CacheOptions(local=str(self.folder), download_retry=1, download_timeout=5)
        self.cache = ShardCache(ShardSource(self.store, DIGEST, self.infos, options))

    @rule(number=SHARDS)
    def read(self, number):
        """Read the right rows, or get an error; an error of an earlier prefetch is raised once."""
        shard, error = self.ask(number)
        if error is not None and self.is_good(number):
            shard, error = self.ask(number)
            assert error is None
        if error is None:
            assert [int(shard[row]["id"]) for row in range(len(shard))] == [number * ROWS + row for row in range(ROWS)]
        else:
            target = self.folder / DIGEST / self.infos[number].raw.basename
            assert not target.exists(), "what failed is not under its final name"

    def ask(self, number):
        try:
            return self.cache.shard(number), None
        except (ShardNotFound, ChecksumMismatch) as error:
            return None, error
        except StoreError as error:
            if "planted" not in error.message:
                raise
            return None, error

    def is_good(self, number):
        key = self.infos[number].stored.basename
        pending = any(planted.seen < planted.at + planted.times - 1 for planted in self.store._shared.rules)
        return self.store.objects.get(key) == self.good[key] and not pending

    @rule(number=SHARDS)
    def prefetch(self, number):
        self.cache.prefetch([number])

    @rule(number=SHARDS, place=st.integers(0, 10_000))
    def rot(self, number, place):
        """Replace a copy by a corrupt file; a run that has it open or verified is not affected: it is another file."""
        path = self.folder / DIGEST / self.infos[number].raw.basename
        if path.exists():
            data = bytearray(path.read_bytes())
            data[place % len(data)] ^= 0x40
            path.unlink()
            path.write_bytes(data)

    @rule(number=SHARDS)
    def lose(self, number):
        (self.folder / DIGEST / self.infos[number].raw.basename).unlink(missing_ok=True)

    @rule()
    def wipe(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    @rule(number=SHARDS, cut=st.integers(0, 100))
    def damage(self, number, cut):
        key = self.infos[number].stored.basename
        self.store.objects[key] = self.good[key][: cut % len(self.good[key])]

    @rule(number=SHARDS)
    def delete(self, number):
        self.store.objects.pop(self.infos[number].stored.basename, None)

    @rule()
    def repair(self):
        self.store.objects.update(self.good)
        self.store.heal()

    @rule()
    def fail_once(self):
        self.store.plant("fetch", times=1)

    def teardown(self):
        if hasattr(self, "folder"):
            self.cache.close()
            shutil.rmtree(self.folder, ignore_errors=True)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
