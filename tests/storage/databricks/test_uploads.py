"""Uploads of whole files: buffers in memory and on disk, sent once on close."""

from pathlib import Path

import pytest

from smalti.storage.databricks.volumes import MEMORY_BYTES, Upload


@pytest.mark.parametrize(("num_bytes", "kind"), [(0, bytes), (MEMORY_BYTES, bytes), (MEMORY_BYTES + 1, Path)])
def test_a_large_upload_is_buffered_on_disk_and_removed_afterwards(num_bytes, kind):
    sent = []

    def send(contents):
        sent.append((contents, contents.read_bytes() if isinstance(contents, Path) else contents))

    with Upload(send, "k") as file:
        file.write(bytes(num_bytes // 2))
        file.write(memoryview(bytes(num_bytes - num_bytes // 2)))
        assert file.tell() == num_bytes
    [(contents, data)] = sent
    assert isinstance(contents, kind)
    assert data == bytes(num_bytes)
    assert not (isinstance(contents, Path) and contents.exists())


def test_an_upload_is_sent_once_and_a_refusal_is_raised():
    sent = []
    file = Upload(sent.append, "k")
    file.write(b"1")
    file.close()
    file.close()
    assert sent == [b"1"]
    with pytest.raises(ValueError, match="closed"):
        file.write(b"2")

    def refuse(_):
        raise FileExistsError("k")

    file = Upload(refuse, "k")
    with pytest.raises(FileExistsError):
        file.close()
    assert file.closed
