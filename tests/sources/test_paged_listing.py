"""A listing in parts: on a store of its own with a million objects, on S3, and the digest of an inventory."""

from dataclasses import dataclass, replace

import pytest

from smalti.errors import StoreError
from smalti.sources.image_folder import PartialListing, extend_digest, list_further, list_images
from smalti.storage import open_store
from smalti.storage.backends import s3
from smalti.storage.store import ListingPage, ObjectInfo
from tests.storage.conftest import clean_environment, s3_bucket, s3_server
from tests.stores import MemoryStore

__all__ = ["clean_environment", "s3_bucket", "s3_server"]


class Pages(MemoryStore):
    """Images with numbers for names, listed in pages; a page takes a second of the store's clock."""

    def __init__(self, count: int, page: int) -> None:
        super().__init__()
        self.count, self.page, self.now, self.broken = count, page, 0.0, False

    def list_page(self, *, after: str = "") -> ListingPage:
        if self.broken:
            raise StoreError("the store is down")
        self.now += 1
        begin = int(after.partition("/")[2]) + 1 if after else 0
        end = min(begin + self.page, self.count)
        keys = [f"roses/{number:07}" for number in range(begin, end)]
        return ListingPage([ObjectInfo(key, 10, "e") for key in keys], keys[-1] if keys else after, end == self.count)


def pass_over(store: Pages, seconds: float) -> list[PartialListing]:
    """The state after each part, up to the end."""
    parts = [PartialListing()]
    while not parts[-1].is_complete:
        parts.append(list_further(store, parts[-1], seconds=seconds, clock=lambda: store.now))
    return parts[1:]


def test_the_digest_is_the_same_however_the_listing_is_divided():
    at_once, in_parts, by_one = (pass_over(Pages(100, page), seconds) for page, seconds in ((100, 9), (7, 3), (1, 0)))
    assert [len(parts) for parts in (at_once, in_parts, by_one)] == [1, 5, 100]
    assert at_once[-1] == in_parts[-1] == by_one[-1]
    assert at_once[-1].count == 100
    assert pass_over(Pages(99, 7), 3)[-1].digest != at_once[-1].digest


def test_a_part_ends_in_time_and_a_failure_loses_nothing():
    store = Pages(100, 10)
    part = list_further(store, PartialListing(), seconds=4, clock=lambda: store.now)
    assert (part.count, part.after, store.now) == (40, "roses/0000039", 4)
    store.broken = True
    with pytest.raises(StoreError, match="down"):
        list_further(store, part, seconds=4)
    store.broken = False
    assert list_further(store, part, seconds=60, clock=lambda: store.now) == pass_over(Pages(100, 100), 1)[-1]


@dataclass
class Object:
    num_bytes: int
    modified: str


def test_names_sizes_and_marks_all_count():
    base = [("a/1", Object(1, "x")), ("a/2", Object(2, "y"))]
    others = [
        [("a/1", Object(1, "x")), ("a/3", Object(2, "y"))],
        [("a/1", Object(1, "x")), ("a/2", Object(3, "y"))],
        [("a/1", Object(1, "x")), ("a/2", replace(base[1][1], modified="z"))],
        base[::-1],
        base[:1],
    ]
    digests = {extend_digest("", objects) for objects in [base, *others]}
    assert len(digests) == 6
    assert extend_digest(extend_digest("", base[:1]), base[1:]) == extend_digest("", base)


def test_an_inventory_has_the_digest_of_the_listing(tmp_path):
    for name in ("roses/1.jpg", "daisy/ü.jpg", "daisy/.hidden", "readme.txt", "daisy/deep/2.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    folder = list_images(str(tmp_path))
    listing = list_further(open_store(tmp_path), PartialListing(), seconds=0)
    assert listing == PartialListing("roses/1.jpg", extend_digest("", [(f.path, f) for f in folder.files]), 3, True)


def test_s3_is_listed_in_pages_that_together_are_the_whole_listing(s3_bucket, s3_server, monkeypatch):
    monkeypatch.setenv("S3_ENDPOINT_URL", s3_server)
    monkeypatch.setattr(s3, "PAGE_REQUESTS", 1)
    store = open_store(f"s3://{s3_bucket}/photos")
    names = [f"roses/{number}.jpg" for number in range(5)] + ["daisy/ü.jpg", "daisy/a b.jpg"]
    for name in names:
        store.put(name, name.encode())
    open_store(f"s3://{s3_bucket}").put("photos-of-others/1.jpg", b"1")
    pages, after = [], ""
    whole = list(store.list())
    with monkeypatch.context() as patch:
        filesystem = store._connection.get()
        call = filesystem._call_s3
        patch.setattr(filesystem, "_call_s3", lambda *args, **options: call(*args, MaxKeys=3, **options))
        while not pages or not pages[-1].is_last:
            pages.append(store.list_page(after=after))
            after = pages[-1].after
    assert [len(page.objects) for page in pages] == [3, 3, 1]
    assert [item for page in pages for item in page.objects] == whole
    assert [item.key for item in whole] == sorted(names)
    folder = list_images(f"s3://{s3_bucket}/photos")
    assert list_further(store, PartialListing(), seconds=0).digest == extend_digest(
        "", [(f.path, f) for f in folder.files]
    )


def test_a_page_of_a_bucket_that_is_gone_is_an_error(s3_server, clean_environment):
    from tests.storage.conftest import ACCESS

    for name, value in {**ACCESS, "S3_ENDPOINT_URL": s3_server}.items():
        clean_environment.setenv(name, value)
    with pytest.raises(StoreError, match="no-such-bucket"):
        open_store("s3://no-such-bucket/photos").list_page()


@pytest.mark.parametrize("kind", ["local", "s3", "memory"])
def test_the_facts_of_one_object_are_those_of_the_listing(kind, tmp_path, s3_bucket, s3_server, monkeypatch):
    monkeypatch.setenv("S3_ENDPOINT_URL", s3_server)
    store = {"local": open_store(tmp_path), "s3": open_store(f"s3://{s3_bucket}/a"), "memory": MemoryStore()}[kind]
    store.put("day/_SUCCESS", b"1")
    found = store.info("day/_SUCCESS")
    [listed] = store.list()
    assert (found.key, found.num_bytes, found.modified) == (listed.key, listed.num_bytes, listed.modified)
    for missing in ("day/other", "day"):
        with pytest.raises(StoreError):
            store.info(missing)
