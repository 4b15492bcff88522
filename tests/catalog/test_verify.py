"""Verification finds every fault, and reports no others."""

import itertools

import pytest

from smalti.catalog import publish, tag, verify
from smalti.errors import StoreAuthError, StoreNotFound
from smalti.storage import LocalStore
from tests.stores import MemoryStore


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "set")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_complete_set_has_no_problems(store, make_draft, compression):
    made = publish(store, make_draft(store, 30, compression=compression))
    seen = []
    report = verify(store, on_shard=lambda done, total: seen.append((done, total)))
    assert report.ok
    assert (report.rows, report.num_shards, report.digest) == (30, len(made.shards), made.digest)
    assert seen == [(n, len(made.shards)) for n in range(1, len(made.shards) + 1)]
    assert "no problem" in report.summary()


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize(("damage", "kind"), [("gone", "missing"), ("cut", "size"), ("flip", "checksum")])
def test_a_damaged_shard_is_named_with_its_kind(store, make_draft, compression, damage, kind):
    made = publish(store, make_draft(store, 30, compression=compression))
    key = made.shards[1].stored.basename
    good = store.get(key)
    store.delete(key)
    if damage != "gone":
        store.put(key, good[:-1] if damage == "cut" else good[:40] + bytes([good[40] ^ 1]) + good[41:])
    report = verify(store)
    assert [(problem.key, problem.kind) for problem in report.problems] == [(key, kind)]
    assert key in report.summary()
    assert verify(store, deep=False).ok == (damage == "flip"), "sizes alone do not see a flipped bit"


def test_a_shard_with_a_wrong_sample_count_is_found_even_without_hashes(make_draft, monkeypatch):
    from dataclasses import replace

    store = MemoryStore()
    draft = make_draft(store, 30)
    shards = [replace(shard, raw=replace(shard.raw, hashes={}), hash_names=()) for shard in draft.shards]
    shards[0] = replace(shards[0], samples=shards[0].samples - 1)
    publish(store, replace(draft, shards=shards))
    report = verify(store)
    assert [(problem.key, problem.kind) for problem in report.problems] == [(shards[0].raw.basename, "content")]


def test_an_older_version_can_be_verified(store, make_draft):
    publish(store, make_draft(store, 10))
    publish(store, make_draft(store, 5), mode="overwrite")
    assert verify(store, version=1).rows == 10


def test_sets_of_mosaicml_verify(shared):
    for name in ("scalars", "text", "arrays", "images", "comp_zstd_3", "comp_zstd_19"):
        report = verify(LocalStore(shared / "golden" / name))
        assert report.ok, report.summary()
        assert report.num_shards > 0


def test_a_store_that_does_not_answer_is_an_error_and_not_a_problem(make_draft):
    with pytest.raises(StoreNotFound):
        verify(MemoryStore())
    store = MemoryStore()
    publish(store, make_draft(store))
    store.plant("size", error=StoreAuthError("403"))
    with pytest.raises(StoreAuthError):
        verify(store)


# ---------------------------------------------------------------------- the row hash


def row_hash_of_draft(draft, store):
    """Return the row hash of a draft's samples, from the bytes in the store."""
    from xxhash import xxh3_128_intdigest

    total = 0
    for shard in draft.shards:
        data = store.get(shard.raw.basename)
        ends = [int.from_bytes(data[4 + 4 * n : 8 + 4 * n], "little") for n in range(shard.samples + 1)]
        total += sum(xxh3_128_intdigest(data[a:b]) for a, b in itertools.pairwise(ends))
    return f"{total % 2**128:032x}"


def test_the_row_hash_is_recomputed_and_compared(store, make_draft):
    from dataclasses import replace

    draft = make_draft(store, 30)
    expected = row_hash_of_draft(draft, store)
    publish(store, draft)
    report = verify(store)
    assert (report.row_hash, report.declared_row_hash, report.ok) == (expected, "", True)
    publish(store, replace(draft, write_id="second", row_hash=expected), mode="overwrite")
    report = verify(store)
    assert (report.row_hash, report.declared_row_hash, report.ok) == (expected, expected, True)
    assert verify(store, deep=False).row_hash == ""


def test_samples_that_are_not_those_that_were_written_are_found_although_every_shard_is_whole(store, make_draft):
    from dataclasses import replace

    draft = make_draft(store, 30)
    publish(store, replace(draft, row_hash=row_hash_of_draft(draft, store), shards=draft.shards[1:]))
    report = verify(store)
    assert [problem.kind for problem in report.problems] == ["rows"]
    assert "their samples are not those that were written" in report.summary()
    assert report.row_hash != report.declared_row_hash


def test_with_a_damaged_shard_no_row_hash_is_reported(store, make_draft):
    from dataclasses import replace

    draft = make_draft(store, 30)
    made = publish(store, replace(draft, row_hash=row_hash_of_draft(draft, store)))
    store.delete(made.shards[1].stored.basename)
    report = verify(store)
    assert [problem.kind for problem in report.problems] == ["missing"]
    assert report.row_hash == ""


def test_row_hashes_of_appended_versions_add_up_and_rollbacks_keep_theirs(store, make_draft):
    from dataclasses import replace

    from smalti.catalog import rollback

    first, second = make_draft(store, 10), make_draft(store, 7, first=50)
    publish(store, replace(first, row_hash=row_hash_of_draft(first, store)))
    publish(store, replace(second, row_hash=row_hash_of_draft(second, store)), mode="append")
    report = verify(store)
    assert report.ok
    assert report.row_hash == report.declared_row_hash != ""
    rollback(store, 1)
    assert verify(store).declared_row_hash == row_hash_of_draft(first, store)
    publish(store, make_draft(store, 2, first=90), mode="append")
    assert verify(store).declared_row_hash == "", "one part does not say its own"


def test_a_version_is_verified_by_its_tag(store, make_draft):
    publish(store, make_draft(store, 10))
    publish(store, make_draft(store, 5), mode="overwrite")
    tag(store, "first", 1)
    assert verify(store, tag="first").rows == 10
    with pytest.raises(ValueError, match="give one of them"):
        verify(store, version=1, tag="first")


def test_only_chosen_shards_are_read_and_then_no_row_hash_is_compared(store, make_draft):
    made = publish(store, make_draft(store, 30))
    first, second = made.shards[:2]
    store.delete(second.stored.basename)
    report = verify(store, only=lambda shard: shard.stored.basename == first.stored.basename)
    assert (report.ok, report.num_shards, report.rows, report.row_hash) == (True, 1, first.samples, "")
    assert not verify(store, only=lambda shard: shard.stored.basename == second.stored.basename).ok
