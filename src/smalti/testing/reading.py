# ruff: noqa: S101 -- a test suite, although it ships
"""The contract of read-only stores as a test suite."""

import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from smalti.errors import StoreError, StoreNotFound
from smalti.storage import Store


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
        again = pickle.loads(pickle.dumps(filled))  # noqa: S301 -- our own bytes
        assert again.get("k") == b"0123456789"

    def test_many_threads_share_one_store(self, filled: Store) -> None:
        """Reads at once, each of its own range."""
        got: dict[int, bytes] = {}

        def read(who: int) -> None:
            got[who] = filled.get_range("big", 16 * who, 16 * who + 16)

        threads = [threading.Thread(target=read, args=(who,), daemon=True) for who in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert got == dict.fromkeys(range(16), b"0123456789abcdef")
