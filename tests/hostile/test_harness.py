"""The harness finds planted faults: readers with one check removed are caught within a thousand cases."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from smalti.errors import FormatError, IndexFileError
from smalti.format import FileInfo, Schema, ShardInfo
from smalti.format.compression import Compression
from tests.hostile.harness import Cases, run
from tests.hostile.index_kinds import Indexes, check_shards
from tests.hostile.mutations import mutate_bytes, mutate_json
from tests.hostile.packed_kinds import PackedFiles
from tests.hostile.seeds import MDS_INDEXES
from tests.hostile.shard_kinds import Shards

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Schema.from_columns({"a": "int", "b": "str"})
GOOD = ShardInfo(SCHEMA, 3, FileInfo("a/shard.00000.mds", 352, {"sha1": "2e" * 20}), hash_names=("sha1",))


class Failing:
    """A kind whose eighth case fails."""

    name = "failing"

    def __init__(self, error):
        self._error = error
        self._number = 0

    def make(self, dice):
        self._number += 1
        return self._number

    def check(self, case):
        if case == 8:
            raise self._error
        return "good"

    def dump(self, case):
        return b"case %d" % case


@pytest.mark.parametrize(
    "error", [KeyError("x"), MemoryError(), RecursionError(), AssertionError("x"), FormatError("x")]
)
def test_a_failing_case_is_saved_with_the_command_that_replays_it(error, tmp_path):
    with pytest.raises(AssertionError, match=r"harness failing --seed 5 --first 107 --count 1"):
        run(Failing(error), Cases(seed=5, first=100, count=50), tmp_path)
    assert (tmp_path / "failing-5-107.bin").read_bytes() == b"case 8"


def test_a_case_that_takes_too_long_fails(tmp_path):
    class Slow(Failing):
        def check(self, case):
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass
            return "good"

    with pytest.raises(AssertionError, match="took more than"):
        run(Slow(None), Cases(count=1), tmp_path, seconds=0.01)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not limit the address space")
def test_memory_is_limited():
    code = "from tests.hostile.harness import limit_memory\nassert limit_memory(64 << 20)\nbytearray(1 << 30)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert "MemoryError" in done.stderr


def test_cases_depend_on_seed_and_number_alone():
    def made(seed):
        return mutate_json(MDS_INDEXES[0], Random(seed)), mutate_bytes(b"x" * 100, Random(seed))

    assert made(3) == made(3)
    assert made(3) != made(4)


def test_a_reader_that_does_not_check_names_is_caught(tmp_path):
    def careless(data, *, where):
        try:
            entries = json.loads(data)["shards"]
            name = entries[0]["raw_data"]["basename"] + ""
            return [replace(GOOD, raw=replace(GOOD.raw, basename=name))], {}
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise IndexFileError(f"{where}: bad") from error

    with pytest.raises(AssertionError, match="a name"):
        run(Indexes("careless", MDS_INDEXES[:1], parse=careless), Cases(count=1000), tmp_path)


def test_a_reader_that_skips_the_hash_is_caught(tmp_path):
    with pytest.raises(AssertionError, match="accepted against a declared hash"):
        run(Shards(verify=lambda *_, **__: None), Cases(count=1000), tmp_path)


def test_a_decompressor_without_limit_is_caught(tmp_path):
    def unlimited(compression, path, out, limit):
        return Compression.decompress_file(compression, path, out, limit + (1 << 20))

    with pytest.raises(AssertionError, match="more than the limit"):
        run(PackedFiles(unpack=unlimited), Cases(count=1000), tmp_path)


def _named(name):
    return replace(GOOD, raw=replace(GOOD.raw, basename=name))


BROKEN = {
    "parent": _named("../shard.mds"),
    "hidden parent": _named("a/../../shard.mds"),
    "absolute": _named("/etc/passwd"),
    "empty": _named(""),
    "dot": _named("a/./b"),
    "drive": _named("C:x"),
    "backslash": _named("..\\x"),
    "look-alike": _named("\uff0e\uff0e/x"),
    "control": _named("a\x00b"),
    "negative samples": replace(GOOD, samples=-1),
    "samples that are true": replace(GOOD, samples=True),
    "too many samples": replace(GOOD, samples=1000),
    "negative size": replace(GOOD, raw=replace(GOOD.raw, num_bytes=-1)),
    "huge size": replace(GOOD, raw=replace(GOOD.raw, num_bytes=2**62)),
    "missing hash": replace(GOOD, hash_names=("md5", "sha1")),
    "compression without file": replace(GOOD, compression="zstd"),
    "negative column": replace(GOOD, schema=replace(SCHEMA, sizes=(-8, None))),
    "wrong column size": replace(GOOD, schema=replace(SCHEMA, sizes=(4, None))),
    "unknown encoding": replace(GOOD, schema=replace(SCHEMA, encodings=("int", "nope"))),
    "column twice": replace(GOOD, schema=replace(SCHEMA, names=("a", "a"))),
    "text shard without meta file": replace(GOOD, format="json", newline="\n"),
}


@pytest.mark.parametrize("shard", BROKEN.values(), ids=BROKEN)
def test_every_guarantee_about_an_accepted_entry_is_checked(shard):
    check_shards([GOOD])
    with pytest.raises(AssertionError):
        check_shards([shard])


def test_a_file_named_by_two_shards_is_detected():
    with pytest.raises(AssertionError, match="share a name"):
        check_shards([GOOD, GOOD])
