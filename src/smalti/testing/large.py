# ruff: noqa: S101 -- a test suite, although it ships
"""The contract of stores for large data. It takes seconds for most backends, so it is separate from `StoreContract`."""

import io
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from smalti.errors import StoreExists
from smalti.storage import Store


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
