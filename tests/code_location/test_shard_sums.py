"""Sums of shards, kept from one version to the next: always those of a fresh reading, and only new shards are read."""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from smalti.catalog import Manifest
from smalti.images import encode_jpeg
from smalti.spark import reshard
from smalti.spark.reshard import SourceFile, convert_files, reshard_files
from smalti.writer.tables.plan import Attempt
from smalti_dagster.checks.sums import (
    KEPT,
    MODULUS,
    SplitSums,
    identity_of,
    load_sums,
    row_hash,
    save_sums,
    sums_of_shards,
)
from tests import seeds
from tests.code_location.shard_sets import picture
from tests.stores import MemoryStore

COLUMNS = {"image": "jpeg", "label": "int", "path": "str"}
TYPES = {"image": BinaryType(), "label": LongType(), "path": StringType(), "split": StringType()}
ARROW = pa.schema([("image", pa.binary()), ("label", pa.int64()), ("path", pa.string()), ("split", pa.string())])


@dataclass
class Frame:
    """The parts of a DataFrame that the driver reads before a task runs."""

    rows: pa.Table
    schema: Any = field(default_factory=lambda: StructType([StructField(name, kind) for name, kind in TYPES.items()]))

    @property
    def columns(self) -> list[str]:
        return list(TYPES)


@dataclass
class Pictures:
    """A shard set of numbered pictures, by path, that is re-sharded without Spark."""

    store: MemoryStore = field(default_factory=MemoryStore)
    numbers: dict[str, int] = field(default_factory=lambda: {"a/always": 1, "b/always": 2})

    def row(self, path: str) -> dict[str, Any]:
        number = self.numbers[path]
        split = "validation" if number % 3 == 2 else "train"
        return {"image": picture(number), "label": number % 4, "path": path, "split": split}

    def reshard(self) -> Manifest:
        def prepare(_: object, paths: Sequence[str]) -> Any:
            return Frame(pa.Table.from_pylist([self.row(path) for path in paths], ARROW))

        def convert(frame: Any, plan: Any, path_column: str) -> Any:
            attempt, batches = Attempt.new(0), frame.rows.select(list(plan.input.names)).to_batches()
            return [(attempt, convert_files(plan, path_column, iter(batches), attempt))]

        files = [SourceFile(path, str(number)) for path, number in self.numbers.items()]
        with patch.object(reshard, "_convert_by_tasks", convert):
            return reshard_files(
                None,  # type: ignore[arg-type]  # no session is needed
                files,
                self.store,  # type: ignore[arg-type]
                prepare=prepare,
                recipe="one",
                columns=COLUMNS,
                compression=None,
                size_limit=3_000,
                partition_by="split",
            )

    @property
    def expected(self) -> dict[str, SplitSums]:
        """Return the sums of the rows themselves."""
        splits: dict[str, SplitSums] = {}
        for row in map(self.row, self.numbers):
            part = splits.setdefault(row.pop("split"), SplitSums())
            part.rows += 1
            part.hash_sum = (part.hash_sum + row_hash(**row)) % MODULUS
            part.labels[row["label"]] += 1
        return splits


PATHS = st.sampled_from([f"{folder}/{number}" for folder in "ab" for number in range(12)])
CHANGES = st.dictionaries(PATHS, st.one_of(st.none(), st.integers(0, 50)), min_size=1, max_size=8)


@settings(max_examples=seeds.sized(30))
@given(history=st.lists(CHANGES, min_size=1, max_size=4))
def test_sums_that_were_kept_through_any_history_are_those_of_a_fresh_reading(history: list[dict[str, Any]]) -> None:
    pictures, kept, seen = Pictures(), MemoryStore(), set[str]()
    for changes in [{}, *history]:
        pictures.numbers |= {path: number for path, number in changes.items() if number is not None}
        for path in (path for path, number in changes.items() if number is None):
            pictures.numbers.pop(path, None)
        manifest = pictures.reshard()
        sums = sums_of_shards(pictures.store, manifest, load_sums(kept))
        save_sums(kept, sums)
        assert sums.splits == sums_of_shards(pictures.store, manifest).splits == pictures.expected
        names = {shard.raw.basename: shard.samples for shard in manifest.shards}
        assert sums.read == sum(samples for name, samples in names.items() if name not in seen)
        seen = set(names)


@functools.cache
def a_set() -> tuple[Pictures, Manifest]:
    pictures = Pictures(numbers={f"a/{number}": number for number in range(20)})
    return pictures, pictures.reshard()


def test_what_was_kept_is_the_same_after_it_was_stored() -> None:
    pictures, manifest = a_set()
    kept, sums = MemoryStore(), sums_of_shards(pictures.store, manifest)
    assert sums.read == 20
    assert len(sums.shards) == len(manifest.shards) > 2
    save_sums(kept, sums)
    assert load_sums(kept) == sums.shards
    again = sums_of_shards(pictures.store, manifest, load_sums(kept))
    assert (again.read, again.splits) == (0, sums.splits)


@pytest.mark.parametrize("found", [b"", b"PAR1 and no more", None])
def test_sums_that_cannot_be_read_are_none(found: bytes | None) -> None:
    kept = MemoryStore()
    if found is not None:
        kept.put(KEPT, found)
    assert load_sums(kept) == {}


def test_a_shard_without_hashes_is_read_each_time() -> None:
    from dataclasses import replace

    _, manifest = a_set()
    info = manifest.shards[0]
    assert identity_of(info) is not None
    assert identity_of(replace(info, raw=replace(info.raw, hashes={}))) is None


def test_sums_of_sums_wrap_at_64_bits_and_name_the_first_twenty_images() -> None:
    whole = SplitSums(1, MODULUS - 1, Counter({0: 1}), ["a"] * 15)
    whole.add(SplitSums(2, 3, Counter({0: 1, 5: 1}), ["b"] * 15))
    assert whole == SplitSums(3, 2, Counter({0: 2, 5: 1}), ["a"] * 15 + ["b"] * 5)


def test_half_a_picture_is_found_in_a_shard_that_is_new() -> None:
    pictures, broken = Pictures(), encode_jpeg(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8), 90)
    pictures.row = (
        lambda path: {  # type: ignore[method-assign]
            "image": broken[: len(broken) // 2] + broken[-2:],
            "label": 0,
            "path": path,
            "split": "train",
        }
    )
    sums, kept = sums_of_shards(pictures.store, pictures.reshard()), MemoryStore()
    assert sums.splits["train"].unreadable == ["a/always", "b/always"]
    save_sums(kept, sums)
    assert sums_of_shards(pictures.store, pictures.reshard(), load_sums(kept)).splits == sums.splits
