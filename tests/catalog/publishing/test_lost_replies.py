"""A conditional request whose reply is lost, or that takes effect and is repeated: the work is done all the same."""

import re
from pathlib import Path

import pytest

import smalti
from smalti.catalog import history, load_manifest, publish, rollback, tag, tags, untag, vacuum, write_index
from smalti.compat.streaming.base.format.base.places import SetUploader
from smalti.exchange import copy_version
from smalti.exporting import export
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.storage.probe import probe_store
from smalti.writer import PurgeOptions, UploadOptions, compact, delete
from tests.stores import MemoryStore

CONDITIONAL = ("put_if_absent", "put_if_match", "delete")


class RepeatingStore(MemoryStore):
    """A store that executes every conditional request twice, as after a lost reply; the second reply counts."""

    def put_if_absent(self, key, data):
        super().put_if_absent(key, data)
        super().put_if_absent(key, data)

    def put_if_match(self, key, data, etag):
        super().put_if_match(key, data, etag)
        return super().put_if_match(key, data, etag)

    def delete(self, key):
        super().delete(key)
        super().delete(key)


def two_versions(store, make_draft):
    publish(store, make_draft(store, 3))
    publish(store, make_draft(store, 4), mode="append")


def moved_tag(store, _):
    tag(store, "best", 1)
    tag(store, "best", 2, move=True)
    assert tags(store) == {"best": 2}


def vacuumed(store, _):
    rollback(store, 1)
    report = vacuum(store, older_than=0, unsafe_ttl=True, dry_run=False)
    assert report.removed
    assert not {each.key for each in report.removed} & set(store.objects)


def purged(store, _):
    report = delete(store, [("id", "==", 2)], purge=PurgeOptions(unsafe_ttl=True))
    assert [each.version for each in report.purge.retired] == [1, 2]


def exported(store, make_draft):
    target = type(store)(url="memory-store://exported")
    target._shared.rules = store._shared.rules
    assert export(other_set(make_draft), target, format="parquet").num_samples == 5
    assert "_SUCCESS" in target.objects


def copied_to_an_empty_place(store, make_draft):
    target = type(store)(url="memory-store://copied")
    target._shared.rules = store._shared.rules
    copy_version(other_set(make_draft), target)
    assert load_manifest(target).rows == 5


def written_by_the_alias(store, _):
    target = type(store)(url="memory-store://alias")
    target._shared.rules = store._shared.rules
    schema = Schema.from_columns({"id": "int"})
    builder = ShardBuilder(schema, ShardOptions(None, (), None, ("xxh3_64",)))
    builder.add({"id": 1})
    writer = SetUploader([target], UploadOptions(1, attempts=1))
    writer.write_shard(builder.finish()[0])
    writer.finish(schema)
    assert sorted(target.objects) == ["index.json", "shard.00000.mds"]


WORK = {
    "publish": lambda store, make_draft: publish(store, make_draft(store, 2), mode="append"),
    "overwrite": lambda store, make_draft: publish(store, make_draft(store, 2), mode="overwrite"),
    "rollback": lambda store, _: rollback(store, 1),
    "tag": lambda store, _: tag(store, "best", 1),
    "move a tag": moved_tag,
    "untag": lambda store, _: (tag(store, "best", 1), untag(store, "best")),
    "write_index": lambda store, _: write_index(store),
    "compact": lambda store, _: compact(store),
    "copy": lambda store, make_draft: copy_version(other_set(make_draft), store, mode="overwrite"),
    "copy to an empty place": copied_to_an_empty_place,
    "delete": lambda store, _: delete(store, [("id", "==", 2)]),
    "purge": purged,
    "vacuum": vacuumed,
    "export": exported,
    "writer of the alias": written_by_the_alias,
    "probe of exclusive puts": lambda store, _: store.check_exclusive_puts("p"),
    "probe of conditional puts": lambda store, _: store.check_conditional_puts("p"),
    "probe_store": lambda store, _: no_problems(probe_store(store)),
}


MEMBERS = {
    "catalog/commit.py": "publish",
    "catalog/index.py": "write_index",
    "catalog/tags.py": "tag",
    "compat/streaming/base/format/base/places.py": "writer of the alias",
    "exchange/copying.py": "copy to an empty place",
    "exporting/steps.py": "export",
    "torch/train/launchers/preflight.py": "tests/torch/train/test_run_store.py",
    "torch/train/run/store.py": "tests/torch/train/test_run_store.py",
    "torch/tuning/journal.py": "tests/torch/train/test_run_store.py",
}
"""By module with conditional requests: one of the works above that makes them, or a file with tests of it."""


def other_set(make_draft):
    store = MemoryStore(url="memory-store://other")
    publish(store, make_draft(store, 5))
    return store


def no_problems(probe):
    assert probe.problems == ()


@pytest.mark.parametrize("name", WORK)
def test_a_request_that_took_effect_and_is_repeated_is_our_own(make_draft, name):
    store = RepeatingStore()
    two_versions(store, make_draft)
    WORK[name](store, make_draft)
    check_consistent(store)


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("request_name", CONDITIONAL)
def test_a_lost_reply_ends_nothing(make_draft, name, request_name):
    store = MemoryStore()
    two_versions(store, make_draft)
    store.plant(request_name, lost_ack=True, times=1)
    WORK[name](store, make_draft)
    store.heal()
    check_consistent(store)


def check_consistent(store):
    assert [info.problem for info in history(store)] == [""] * len(history(store))
    assert load_manifest(store).rows == sum(shard.samples for shard in load_manifest(store).shards)
    left = [info.key for info in store.list() if "probe" in info.key or "/writes/" in info.key]
    assert left == []


def test_every_module_with_conditional_requests_has_a_row():
    root = Path(smalti.__file__).parent
    asking = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r"\.put_if_(?:absent|match)\b|\bput_own\(", path.read_text())
    }
    assert {name for name in asking if not name.startswith(("storage/", "testing/"))} == set(MEMBERS)
    for row in MEMBERS.values():
        assert row in WORK or "lost_ack" in (root.parents[1] / row).read_text()
