"""Publishes, and appends to, a set of very many shards in so much memory; run as a program by test_a_conversion.

a_many_shards <shards> <MiB of address space beyond what is taken before>
"""

import resource
import sys
from pathlib import Path

import pyarrow.compute  # noqa: F401 -- before the memory that is taken is counted

from smalti.catalog import Draft, load_manifest, publish
from smalti.catalog.table.arrow import table_of
from smalti.format import FileInfo, Schema, ShardInfo
from smalti.storage import ObjectInfo
from tests.stores import MemoryStore

SCHEMA = Schema.from_columns({"id": "int64"})


class Vast(MemoryStore):
    """Lists shards that need not be there, and keeps of a large file its last mebibyte alone."""

    def __init__(self, count):
        super().__init__()
        self.count = count
        self.long = {}

    def list(self, prefix=""):
        return (ObjectInfo(key_of(prefix, number), 1000, "") for number in range(self.count))

    def put_file(self, key, path):
        size = Path(path).stat().st_size
        with Path(path).open("rb") as file:
            file.seek(max(0, size - (1 << 20)))
            self.put(key, file.read())
        self.long[key] = size

    def size(self, key):
        return self.long.get(key) or super().size(key)

    def get_range(self, key, begin, end):
        if key not in self.long:
            return super().get_range(key, begin, end)
        kept = super().get(key)
        hidden = self.long[key] - len(kept)
        return bytes(end - begin) if end <= hidden else kept[max(0, begin - hidden) : end - hidden]


def key_of(write_id, number):
    return f"{write_id}/{number // 1000:05d}-a1b2c3d4/shard.{number % 1000:05d}.mds"


def draft(write_id, count):
    shards = (
        ShardInfo(SCHEMA, 100, FileInfo(key_of(write_id, number), 1000, {"xxh3_64": f"{number:016x}"}))
        for number in range(count)
    )
    return Draft(write_id, SCHEMA, table_of(shards))


def taken():
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(count, room):
    store = Vast(count)
    publish(MemoryStore(), Draft("warm", SCHEMA, []), mode="append")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (taken() + (room << 20), resource.RLIM_INFINITY))
    first = publish(store, draft("first", count))
    second = publish(store, draft("second", count), mode="append")
    del first
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    found = load_manifest(store, version=2)
    sys.stdout.write(f"{second.version} {len(found.shards)} {found.rows}\npeak {peak:.0f} MiB more\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
