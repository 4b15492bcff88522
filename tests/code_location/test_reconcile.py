"""The checks of the shard set, on sets that were made wrong on purpose."""

from dataclasses import replace
from pathlib import Path

import dagster as dg
import numpy as np
import pytest

from smalti.catalog import Manifest
from smalti.images import encode_jpeg
from smalti_dagster.checks.sums import not_in, row_hash, sums_of_shards, sums_of_table
from smalti_dagster.resources.storage import StorageResource
from tests.code_location.instances import instance_in_memory
from tests.code_location.shard_sets import execute_checks, picture, publish_set, row, shards, table_of


def check(name: str, storage: StorageResource, manifest: Manifest, *, times: int = 1) -> dg.AssetCheckEvaluation:
    """Execute the check as a person does, so many times, and return its results."""
    with instance_in_memory() as instance:
        facts = {"version": manifest.version, "digest": manifest.digest}
        instance.report_runless_asset_event(dg.AssetMaterialization(["flowers", "shards"], metadata=facts))
        found = [execute_checks(instance, storage, name)[name] for _ in range(times)]
    return found[-1]


def test_sums_are_equal_for_equal_rows_in_any_order_and_any_shards(storage: StorageResource, tmp_path: Path) -> None:
    rows = [row(number) for number in range(10)]
    manifest = publish_set(storage, {"train": rows[::-1], "validation": rows[:3]})
    sums = sums_of_shards(shards(storage), manifest).splits
    assert sums["train"].rows == 10
    assert sums["train"].hash_sum == sum(row_hash(r["image"], r["label"], r["path"]) for r in rows)  # type: ignore[arg-type]
    assert sums["validation"].labels == {0: 2, 1: 1}
    assert not sums["train"].unreadable


@pytest.mark.parametrize("change", ["image", "label", "path"])
def test_a_row_hash_depends_on_everything_in_the_row(change: str) -> None:
    before = {"image": b"jpeg", "label": 1, "path": "roses/1.jpg"}
    after = {**before, change: {"image": b"JPEG", "label": 2, "path": "roses/2.jpg"}[change]}
    assert row_hash(**before) != row_hash(**after)  # type: ignore[arg-type]


def test_a_row_hash_is_the_same_in_every_release() -> None:
    """SHA-256 of the SHA-256 of the image, the label and the path, joined by bars; first 15 hex digits."""
    assert row_hash(b"abc", 7, "a/b.jpg") == int("8343912cebb30f9", 16)


def test_an_image_that_does_not_decode_is_named(storage: StorageResource) -> None:
    noise = encode_jpeg(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8), 90)
    broken = noise[: len(noise) // 2] + noise[-2:]  # header and end mark are there: the writer lets it through
    manifest = publish_set(storage, {"train": [row(0), {"image": broken, "label": 1, "path": "roses/broken.jpg"}]})
    assert sums_of_shards(shards(storage), manifest).splits["train"].unreadable == ["roses/broken.jpg"]


def test_a_shard_is_new_unless_a_version_has_one_of_its_name_size_and_hashes(storage: StorageResource) -> None:
    first = publish_set(storage, {"train": [row(0), row(1)], "validation": [row(2)]})
    train, validation = first.shards
    moved = replace(validation, raw=replace(validation.raw, basename="validation/other/shard.00000.mds"))
    flipped = replace(train, raw=replace(train.raw, hashes={"xxh3_64": "0" * 16}))
    unhashed = replace(train, raw=replace(train.raw, hashes={}))
    is_new = not_in(first)
    assert [is_new(info) for info in (train, validation, moved, flipped, unhashed)] == [False, False, True, True, True]


def test_a_class_that_vanished_from_a_split_is_named(storage: StorageResource) -> None:
    manifest = publish_set(storage, {"train": [row(0), row(1)], "validation": [row(2)]})
    evaluation = check("no_class_vanished", storage, manifest)
    assert not evaluation.passed
    assert evaluation.metadata["missing"].value == ["roses in validation"]


def test_a_set_with_every_class_in_every_split_passes(storage: StorageResource) -> None:
    manifest = publish_set(storage, {"train": [row(0), row(1)], "validation": [row(2), row(3)]})
    assert check("no_class_vanished", storage, manifest).passed


def test_a_check_that_a_person_executes_is_made_again(storage: StorageResource) -> None:
    manifest = publish_set(storage, {"train": [row(0), row(1)], "validation": [row(2), row(3)]})
    assert "classes" in check("no_class_vanished", storage, manifest, times=2).metadata


def test_one_changed_byte_fails_the_hashes(storage: StorageResource) -> None:
    manifest = publish_set(storage, {"train": [row(number) for number in range(4)]})
    assert check("hashes_verify", storage, manifest).passed
    path = shards(storage).local_path(manifest.shards[0].stored.basename)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    evaluation = check("hashes_verify", storage, manifest)
    assert not evaluation.passed
    assert evaluation.blocking


def test_the_table_and_the_shards_agree_on_the_sums_and_on_any_difference(storage: StorageResource) -> None:
    rows = [row(number) for number in range(20)]
    manifest = publish_set(storage, {"train": rows[:15], "validation": rows[15:]})
    found = {split: (p.rows, p.hash_sum) for split, p in sums_of_shards(shards(storage), manifest).splits.items()}

    def table_sums(changed: list[dict[str, object]]) -> dict[str, tuple[int, int]]:
        table = table_of(storage, {"train": changed[:15], "validation": changed[15:]})
        return {split: (part.rows, part.hash_sum) for split, part in sums_of_table(table).items()}

    assert table_sums(rows) == found
    assert table_sums([*rows[:14], rows[13], *rows[15:]]) != found  # one lost, another twice: the count is right
    assert table_sums([{**rows[0], "label": 1}, *rows[1:]]) != found
    assert table_sums([{**rows[0], "image": picture(99)}, *rows[1:]]) != found
