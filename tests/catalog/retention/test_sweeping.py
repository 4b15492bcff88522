"""The rules of vacuum, as properties of arbitrary listings."""

import hypothesis.strategies as st
from hypothesis import given, settings

from smalti.catalog.retention.sweep import SetFacts, Why, sweep
from smalti.storage import ObjectInfo

CUTOFF = 1000.0
PUBLISHED = ("pub-a", "pub-b")
MARKED = ("mark-c", "mark-d")
FOLDERS = st.sampled_from([*PUBLISHED, *MARKED, "train", "other", "_versions", "writes", "tags", "00000-deadbeef"])
NAMES = st.sampled_from(
    [
        "shard.00000.mds", "shard.00000.mds.zstd", "shard.123456.json.meta", "shard.mds", "notes.txt", "index.json",
        "00000001.json", "pub-a.json", "mark-c.json", "mark-d.json", "ab" * 32 + ".arrow", "ab" * 32 + "-2.arrow",
        "x.arrow", "probe-0123456789abcdef", "probe-1", "best.json",
    ]
)  # fmt: skip
KEYS = st.builds(lambda folders, name: "/".join([*folders, name]), st.lists(FOLDERS, max_size=4), NAMES)
TIMES = st.sampled_from([None, 0.0, 999.0, 1000.0, 2000.0])


def infos_of(found):
    return [ObjectInfo(key, 1, "", time) for key, time in sorted(found.items())]


def is_ours(key, markers):
    """Return whether Smalti wrote an object of this name, by the rule of docs/versions.md."""
    *folders, name = key.split("/")
    if folders == ["_versions"]:
        return name.startswith(("ab" * 32, "probe-0123456789abcdef"))
    if folders == ["_versions", "writes"]:
        return name.endswith(".json")
    is_named = name.endswith(".arrow") or name.startswith(("shard.0", "shard.1"))
    return is_named and any(folder in {*PUBLISHED, *markers} for folder in folders[:2])


@settings(max_examples=300, deadline=None)
@given(
    found=st.dictionaries(KEYS, TIMES, max_size=25),
    live=st.sets(st.integers(0, 24)),
    expired=st.sets(st.sampled_from(PUBLISHED)),
)
def test_nothing_is_removed_that_is_live_young_foreign_or_of_a_write_in_progress(found, live, expired):
    listing = infos_of(found)
    kept_keys = {info.key for place, info in enumerate(listing) if place in live}
    result = sweep(listing, SetFacts(PUBLISHED, kept_keys, expired), CUTOFF)
    markers = [
        name for name in ("pub-a", *MARKED, "best", "00000001", "index") if f"_versions/writes/{name}.json" in found
    ]
    doomed = {each.key for each in result.doomed}
    assert len(doomed) + sum(result.kept.values()) == len(listing)
    for key in doomed:
        assert key not in kept_keys
        assert found[key] is not None
        assert found[key] < CUTOFF
        assert is_ours(key, markers), key
    for write_id in set(markers) - set(PUBLISHED):
        own = [
            key
            for key in found
            if is_ours(key, [write_id])
            and write_id in key
            and not any(other in key.split("/")[:2] for other in {*PUBLISHED, *markers} - {write_id})
        ]
        if any(found[key] is None or found[key] >= CUTOFF for key in own):
            assert not doomed & set(own), f"{write_id} may still be at work"


def listed(*keys, time=0.0):
    return [ObjectInfo(key, 7, "", time) for key in keys]


def test_tables_are_removed_first_and_markers_last():
    table = f"_versions/{'ab' * 32}.arrow"
    listing = listed("_versions/writes/mark-c.json", "mark-c/0/shard.00000.mds", table, "pub-a/0/shard.00000.mds")
    result = sweep(listing, SetFacts(["pub-a"], [], ["pub-a"]), CUTOFF)
    assert [(each.key, each.why) for each in result.doomed] == [
        (table, Why.LEFTOVER),
        ("mark-c/0/shard.00000.mds", Why.ORPHAN),
        ("pub-a/0/shard.00000.mds", Why.EXPIRED),
        ("_versions/writes/mark-c.json", Why.ORPHAN),
    ]
    assert result.fences == ("ab" * 32, "mark-c", "pub-a")
    assert result.shown == {"ab" * 32, "mark-c", "pub-a"}


def test_a_published_write_that_loses_shards_is_fenced_because_a_copy_could_bring_their_names_back():
    listing = listed("pub-a/0/shard.00000.mds")
    assert sweep(listing, SetFacts(["pub-a"], [], ["pub-a"]), CUTOFF).fences == ("pub-a",)
    assert sweep(listing, SetFacts(["pub-a"], [], []), CUTOFF).fences == ("pub-a",)
    assert sweep(listing, SetFacts(["pub-a"], ["pub-a/0/shard.00000.mds"], []), CUTOFF).fences == ()
