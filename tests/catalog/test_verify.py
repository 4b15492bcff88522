"""Verification finds what is wrong, and only that."""

import pytest

from smalti.catalog import publish, verify
from smalti.errors import StoreAuthError, StoreNotFound
from smalti.storage import LocalStore
from smalti.testing import MemoryStore


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "set")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_whole_set_has_no_problems(store, make_draft, compression):
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


def test_a_shard_whose_sample_count_lies_is_found_even_without_hashes(make_draft, monkeypatch):
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


def test_no_verdict_without_an_answer(make_draft):
    with pytest.raises(StoreNotFound):
        verify(MemoryStore())
    store = MemoryStore()
    publish(store, make_draft(store))
    store.plant("size", error=StoreAuthError("403"))
    with pytest.raises(StoreAuthError):
        verify(store)
