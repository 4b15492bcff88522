"""Uploads of whole files: a temporary file, sent once on close."""

import pytest

from smalti.storage.databricks.volumes import Upload


def test_an_upload_is_a_file_that_is_removed_afterwards():
    sent = []
    with Upload(lambda path: sent.append((path, path.read_bytes())), "k") as file:
        file.write(b"12")
        file.write(memoryview(b"345"))
        assert file.tell() == 5
    [(path, data)] = sent
    assert data == b"12345"
    assert not path.parent.exists()


def test_an_upload_is_sent_once_and_a_refusal_is_raised():
    sent = []
    file = Upload(lambda path: sent.append(path.read_bytes()), "k")
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
