"""The contracts of stores as test suites, which the tests of a backend inherit.

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MyStore(...)  # empty

`LargeStoreContract` takes seconds for most backends, so it is separate; `ReadContract` is for read-only stores.
"""

import io
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import pytest

from smalti.errors import StoreConflict, StoreError, StoreExists, StoreNotFound
from smalti.storage import Store, Tagged


def _run_threads(work: Callable[[int], None], count: int) -> None:
    """Call `work` with each number below `count`, in as many threads at once, and wait for them for 60 s each."""
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


class StoreContract:
    """Base class of a store's tests. A subclass defines a fixture `store` that is empty."""

    exclusive_puts = True
    """False for a backend that is known to ignore conditional puts; the probe must then detect it."""
    conditional_puts = True
    """False for a kind of store that has no `put_if_match`, or a backend that ignores or refuses its condition."""
    pickles = True
    """False for a fake that lives in one process."""

    def test_what_is_put_is_got(self, store: Store) -> None:
        """Bytes come back as they were, the empty object too."""
        for key, data in {"a": b"x", "folder/sub/b.bin": bytes(range(256)), "empty": b""}.items():
            store.put(key, data)
            assert store.get(key) == data
            assert store.size(key) == len(data)
            assert store.exists(key)

    def test_a_put_replaces(self, store: Store) -> None:
        """The second put wins."""
        store.put("k", b"old and longer")
        store.put("k", memoryview(b"new"))
        assert store.get("k") == b"new"

    def test_a_missing_key_is_not_found(self, store: Store) -> None:
        """Every reading method raises StoreNotFound with the key."""
        for read in (
            store.get,
            store.size,
            lambda key: store.get_range(key, 0, 1),
            lambda key: store.fetch(key, io.BytesIO()),
        ):
            with pytest.raises(StoreNotFound, match="no/such"):
                read("no/such")
        assert not store.exists("no/such")

    def test_a_folder_is_not_an_object(self, store: Store) -> None:
        """A prefix of keys has no size and no bytes."""
        store.put("folder/k", b"1")
        assert not store.exists("folder")
        with pytest.raises(StoreNotFound):
            store.get("folder")

    def test_ranges_are_half_open_and_end_with_the_object(self, store: Store) -> None:
        """Python's slice rules, for begin <= end."""
        store.put("k", b"0123456789")
        cases = {
            (0, 1): b"0",
            (2, 5): b"234",
            (0, 10): b"0123456789",
            (8, 99): b"89",
            (10, 12): b"",
            (50, 60): b"",
            (3, 3): b"",
        }
        for (begin, end), expected in cases.items():
            assert store.get_range("k", begin, end) == expected, (begin, end)
        for begin, end in ((-1, 3), (5, 4)):
            with pytest.raises(ValueError, match="range"):
                store.get_range("k", begin, end)

    def test_fetch_streams_the_whole_object(self, store: Store) -> None:
        """Chunks in order; the callback sees all of them; sizes around the chunk of FsspecStore included."""
        for size in (0, 1, 1000, 8 << 20, (8 << 20) + 1):
            data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
            store.put("big", data)
            out, seen = io.BytesIO(), io.BytesIO()
            assert store.fetch("big", out, on_chunk=lambda chunk, seen=seen: seen.write(chunk) and None) == size  # type: ignore[misc]
            assert out.getvalue() == data
            assert seen.getvalue() == data

    def test_put_file_stores_its_content(self, store: Store, tmp_path: Path) -> None:
        """A local file, and an error when there is none."""
        (tmp_path / "f").write_bytes(b"file content")
        store.put_file("x/f", tmp_path / "f")
        assert store.get("x/f") == b"file content"

    def test_delete_removes_and_is_idempotent(self, store: Store) -> None:
        """A second delete is no error."""
        store.put("d/k", b"1")
        store.delete("d/k")
        store.delete("d/k")
        store.delete("never/there")
        assert not store.exists("d/k")

    def test_put_if_absent_never_replaces(self, store: Store) -> None:
        """The first content stays."""
        if not self.exclusive_puts:
            pytest.skip("this backend ignores conditions; see test_the_probe_tells_the_truth")
        store.put_if_absent("v/1", b"first")
        with pytest.raises(StoreExists, match="v/1"):
            store.put_if_absent("v/1", b"second")
        assert store.get("v/1") == b"first"

    def test_exactly_one_of_many_creators_wins(self, store: Store) -> None:
        """Eight threads on each of five keys."""
        if not self.exclusive_puts:
            pytest.skip("this backend ignores conditions")
        wins: list[tuple[str, bytes]] = []
        barrier = threading.Barrier(8, timeout=30)

        def create(who: int) -> None:
            for turn in range(5):
                barrier.wait()
                try:
                    store.put_if_absent(f"race/{turn}", b"%d" % who)
                except StoreExists:
                    continue
                wins.append((f"race/{turn}", b"%d" % who))

        _run_threads(create, 8)
        assert sorted(key for key, _ in wins) == [f"race/{turn}" for turn in range(5)]
        for key, content in wins:
            assert store.get(key) == content

    def test_the_probe_tells_the_truth(self, store: Store) -> None:
        """`check_exclusive_puts` passes where conditions hold, raises where they do not, and leaves nothing behind."""
        if self.exclusive_puts:
            store.check_exclusive_puts("probe")
        else:
            with pytest.raises(StoreError, match="conditional"):
                store.check_exclusive_puts("probe")
        assert list(store.list()) == []

    def test_a_conditional_put_replaces_what_was_read_and_nothing_else(self, store: Store) -> None:
        """Each ETag is valid for one put; a deleted object matches no ETag."""
        if not self.conditional_puts:
            pytest.skip("this backend has no conditional puts; see test_the_probe_of_conditional_puts_tells_the_truth")
        store.put("i", b"one")
        first = store.get_tagged("i")
        assert first.data == b"one"
        second = store.put_if_match("i", b"two", first.etag)
        with pytest.raises(StoreConflict, match="i "):
            store.put_if_match("i", b"lost", first.etag)
        assert store.get("i") == b"two"
        assert store.get_tagged("i") == Tagged(b"two", second)
        store.put("i", b"by another writer")
        with pytest.raises(StoreConflict):
            store.put_if_match("i", b"lost", second)
        last = store.get_tagged("i").etag
        store.delete("i")
        with pytest.raises(StoreConflict):
            store.put_if_match("i", b"lost", last)
        with pytest.raises(StoreNotFound):
            store.get_tagged("i")

    def test_no_change_is_lost_where_many_change_one_object(self, store: Store) -> None:
        """Three threads count to three each in one object: read, add one, put if unchanged."""
        if not self.conditional_puts:
            pytest.skip("this backend has no conditional puts")
        store.put("count", b"0")
        faults: list[BaseException] = []

        def count(_: int) -> None:
            try:
                for _ in range(3):
                    for _ in range(200):
                        seen = store.get_tagged("count")
                        try:
                            store.put_if_match("count", b"%d" % (int(seen.data) + 1), seen.etag)
                        except StoreConflict:
                            continue
                        break
            except BaseException as error:
                faults.append(error)

        _run_threads(count, 3)
        assert faults == []
        assert store.get("count") == b"9"

    def test_the_probe_of_conditional_puts_tells_the_truth(self, store: Store) -> None:
        """It passes where `put_if_match` can be relied on, raises where not, and leaves nothing behind."""
        if self.conditional_puts:
            store.check_conditional_puts("probe")
        else:
            with pytest.raises(StoreError, match=r"condition|ETag|generation"):
                store.check_conditional_puts("probe")
        assert list(store.list()) == []

    def test_list_is_recursive_sorted_and_exact(self, store: Store) -> None:
        """Keys by code point; a folder's name is not a string prefix."""
        keys = ["a-b", "a/b", "a/b.c/d", "ab", "z/1"]
        for key in reversed(keys):
            store.put(key, key.encode())
        assert [(info.key, info.num_bytes) for info in store.list()] == [(key, len(key)) for key in keys]
        assert [info.key for info in store.list("a")] == ["a/b", "a/b.c/d"]
        assert [info.key for info in store.list("a/")] == ["a/b", "a/b.c/d"]
        assert list(store.list("nothing")) == []

    def test_list_sees_a_change(self, store: Store) -> None:
        """No stale listing, and the version mark of the content is set."""
        store.put("f/a", b"1")
        before = list(store.list("f"))
        store.put("f/b", b"22")
        assert [info.key for info in store.list("f")] == ["f/a", "f/b"]
        assert before[0].modified

    def test_a_listing_tells_when_objects_were_last_put(self, store: Store) -> None:
        """Times come from one clock: a later put is not older, and a second put updates the time."""
        store.put("a", b"1")
        store.put("b", b"2")
        first = {info.key: info.changed for info in store.list()}
        store.put("a", b"3")
        second = {info.key: info.changed for info in store.list()}
        times = [first["a"], first["b"], second["a"]]
        known = [time for time in times if time is not None]
        assert len(known) in {0, 3}, "a store gives the time of all objects or of none"
        assert known == sorted(known)
        assert not known or known[-1] - known[0] < 3600

    def test_a_child_is_a_folder(self, store: Store) -> None:
        """Same objects, shorter keys; the URL contains the folder."""
        child = store.child("data/train")
        child.put("s", b"1")
        assert store.get("data/train/s") == b"1"
        assert [info.key for info in child.list()] == ["s"]
        assert child.url.endswith("data/train")
        assert child.child("x").url.endswith("data/train/x")

    def test_keys_cannot_leave_the_root(self, store: Store, tmp_path: Path) -> None:
        """Refused by every method, before anything is touched."""
        (tmp_path / "f").write_bytes(b"1")
        for key in ("../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a/./b", "a\\b", "nul\0", "x" * 2000):
            for use in (
                store.get,
                store.size,
                store.delete,
                lambda key: store.put(key, b"1"),
                lambda key: store.put_if_absent(key, b"1"),
                lambda key: store.put_if_match(key, b"1", "etag"),
                store.get_tagged,
                lambda key: store.put_file(key, tmp_path / "f"),
                lambda key: store.get_range(key, 0, 1),
                store.local_path,
            ):
                with pytest.raises(StoreError, match="key"):
                    use(key)
        for prefix in ("../x", "/etc", "a/../.."):
            with pytest.raises(StoreError, match="key"):
                store.child(prefix)
            with pytest.raises(StoreError, match="key"):
                list(store.list(prefix))

    def test_unusual_names_survive(self, store: Store) -> None:
        """Spaces, percent signs, accents, '=' of partition folders, '#', '+'."""
        for key in ("label=a b/ü 100%.jpg", "x/a+b#c&d.mds", "x/100%25", "日本/語"):
            store.put(key, key.encode())
            assert store.get(key) == key.encode()
            assert key in [info.key for info in store.list()]
            store.delete(key)
        assert list(store.list()) == []

    def test_a_store_pickles(self, store: Store) -> None:
        """Worker processes receive stores; connections are made anew."""
        if not self.pickles:
            pytest.skip("lives in one process")
        store.put("p", b"1")
        again = pickle.loads(pickle.dumps(store))
        assert again.get("p") == b"1"
        assert again.url == store.url

    def test_many_threads_share_one_store(self, store: Store) -> None:
        """Reads and writes at once, each thread its own keys."""
        faults: list[BaseException] = []

        def work(who: int) -> None:
            try:
                for turn in range(5):
                    store.put(f"t/{who}/{turn}", b"%d" % turn)
                    assert store.get(f"t/{who}/{turn}") == b"%d" % turn
            except BaseException as error:
                faults.append(error)

        _run_threads(work, 8)
        assert faults == []
        assert len(list(store.list("t"))) == 40


class LargeStoreContract:
    """Base class of a store's tests. A subclass defines a fixture `store` that is empty."""

    exclusive_puts = True
    """False for a backend that is known to ignore conditional puts."""
    num_keys = 1_003
    """More than one page of a listing: S3 and GCS give 1,000 at a time."""
    num_bytes = (101 << 20) + 7
    """More than the libraries send in one request."""

    def test_a_listing_does_not_end_with_its_first_page(self, store: Store) -> None:
        """Every key once, in order, sizes right."""
        keys = [f"many/{number:06}" for number in range(self.num_keys)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: store.put(key, b"12"), keys))
        assert [(info.key, info.num_bytes) for info in store.list("many")] == [(key, 2) for key in keys]

    def test_a_large_object_goes_in_parts_and_comes_back_whole(self, store: Store, tmp_path: Path) -> None:
        """From a file and from memory; ranges across the parts' borders."""
        block = bytes(range(256)) * 4096 + b"odd"  # no part begins with the same byte as another
        data = (block * (self.num_bytes // len(block) + 1))[: self.num_bytes]
        (tmp_path / "f").write_bytes(data)
        store.put_file("from/file", tmp_path / "f")
        store.put("from/memory", data)
        expected = sha256(data).hexdigest()
        for key in ("from/file", "from/memory"):
            assert store.size(key) == self.num_bytes
            out = io.BytesIO()
            store.fetch(key, out)
            assert sha256(out.getbuffer()).hexdigest() == expected
        border = min(50 << 20, self.num_bytes // 2)
        assert store.get_range("from/file", border - 5, border + 5) == data[border - 5 : border + 5]

    def test_a_large_exclusive_put_never_replaces(self, store: Store) -> None:
        """The condition holds for an upload in parts too."""
        if not self.exclusive_puts:
            pytest.skip("this backend ignores conditions")
        data = bytes(self.num_bytes)
        store.put_if_absent("v", b"first")
        with pytest.raises(StoreExists):
            store.put_if_absent("v", data)
        assert store.get("v") == b"first"


class ReadContract:
    """Base class of a store's tests. A subclass defines a fixture `filled`: a store that contains `CONTENT`."""

    CONTENT: ClassVar[dict[str, bytes]] = {
        "k": b"0123456789",
        "empty": b"",
        "folder/sub/b.bin": bytes(range(256)),
        "label=a b/ü 100%.jpg": b"accents, spaces, percent",
        "x/a+b#c&d.mds": b"signs",
        "big": b"0123456789abcdef" * (1 << 19) + b"!",  # one more byte than a chunk of FsspecStore
    }

    def test_what_is_there_is_got(self, filled: Store) -> None:
        """Bytes and sizes, names of all kinds."""
        for key, data in self.CONTENT.items():
            assert filled.get(key) == data
            assert filled.size(key) == len(data)
            assert filled.exists(key)

    def test_a_missing_key_is_not_found(self, filled: Store) -> None:
        """Every reading method raises StoreNotFound with the key."""
        for read in (
            filled.get,
            filled.size,
            lambda key: filled.get_range(key, 0, 1),
            lambda key: filled.fetch(key, io.BytesIO()),
        ):
            with pytest.raises(StoreNotFound, match="no/such"):
                read("no/such")
        assert not filled.exists("no/such")

    def test_ranges_are_half_open_and_end_with_the_object(self, filled: Store) -> None:
        """Python's slice rules, for begin <= end."""
        cases = {(0, 1): b"0", (2, 5): b"234", (0, 10): b"0123456789", (8, 99): b"89", (10, 12): b"", (50, 60): b""}
        for (begin, end), expected in cases.items():
            assert filled.get_range("k", begin, end) == expected, (begin, end)
        assert filled.get_range("k", 3, 3) == b""
        with pytest.raises(ValueError, match="range"):
            filled.get_range("k", 5, 4)

    def test_fetch_streams_the_whole_object(self, filled: Store) -> None:
        """One chunk and more than one."""
        for key in ("empty", "k", "big"):
            out = io.BytesIO()
            assert filled.fetch(key, out) == len(self.CONTENT[key])
            assert out.getvalue() == self.CONTENT[key]

    def test_nothing_can_be_written(self, filled: Store, tmp_path: Path) -> None:
        """Every writing method raises, and the content stays."""
        (tmp_path / "f").write_bytes(b"2")
        writes: list[Callable[[], None]] = [
            lambda: filled.put("k", b"2"),
            lambda: filled.put_if_absent("new", b"2"),
            lambda: filled.put_file("k", tmp_path / "f"),
            lambda: filled.delete("k"),
        ]
        for write in writes:
            with pytest.raises(StoreError, match="read only"):
                write()
        assert filled.get("k") == b"0123456789"

    def test_a_child_is_a_folder(self, filled: Store) -> None:
        """Same objects, shorter keys."""
        assert filled.child("folder").child("sub").get("b.bin") == bytes(range(256))

    def test_keys_cannot_leave_the_root(self, filled: Store) -> None:
        """Refused before any request."""
        for key in ("../x", "/etc/passwd", "a//b", "", ".", "a\\b", "nul\0"):
            with pytest.raises(StoreError, match="key"):
                filled.get(key)

    def test_a_store_pickles(self, filled: Store) -> None:
        """Worker processes receive stores; connections are made anew."""
        again = pickle.loads(pickle.dumps(filled))
        assert again.get("k") == b"0123456789"

    def test_many_threads_share_one_store(self, filled: Store) -> None:
        """Reads at once, each of its own range."""
        got: dict[int, bytes] = {}

        def read(who: int) -> None:
            got[who] = filled.get_range("big", 16 * who, 16 * who + 16)

        _run_threads(read, 16)
        assert got == dict.fromkeys(range(16), b"0123456789abcdef")
