"""SFTP: logins, the check of the server's key, and atomic writes."""

import secrets
import time

import asyncssh
import pytest

from smalti.errors import StoreAuthError, StoreError
from smalti.storage import UnfinishedUpload, open_store


@pytest.fixture
def place(sftp, clean_environment):
    """The address of a new folder; the server's key is known, the environment has no login."""
    clean_environment.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(sftp.known_hosts))
    clean_environment.delenv("SSH_AUTH_SOCK", raising=False)
    return f"{sftp.url}/{secrets.token_hex(6)}"


def test_a_password_opens_the_server_and_a_wrong_one_is_refused(sftp, place):
    store = open_store(place, {"password": sftp.password})
    store.put("k", b"1")
    assert store.get("k") == b"1"
    with pytest.raises(StoreAuthError, match="COMPOSER_SFTP_KEY_FILE") as caught:
        open_store(place, {"password": "canary-canary"}).get("k")
    assert "canary" not in f"{caught.value} {caught.value.__cause__!r}"


def test_a_key_file_opens_the_server_and_another_is_refused(sftp, place, clean_environment, tmp_path):
    clean_environment.setenv("COMPOSER_SFTP_KEY_FILE", str(sftp.key_file))
    open_store(place).put("k", b"1")
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "other"))
    clean_environment.setenv("COMPOSER_SFTP_KEY_FILE", str(tmp_path / "other"))
    with pytest.raises(StoreAuthError, match="refused"):
        open_store(place).get("k")
    clean_environment.setenv("COMPOSER_SFTP_KEY_FILE", str(tmp_path / "absent"))
    with pytest.raises(StoreAuthError, match=r"COMPOSER_SFTP_KEY_FILE.*absent"):
        open_store(place).get("k")


@pytest.mark.parametrize("known", ["no key", "another key"])
def test_a_server_with_an_unknown_key_is_refused(sftp, place, clean_environment, tmp_path, known):
    """sshfs trusts every server by default, and would send it the password."""
    line = b""
    if known == "another key":
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key()
        line = f"[127.0.0.1]:{sftp.port} ".encode() + other
    (tmp_path / "hosts").write_bytes(line)
    clean_environment.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(tmp_path / "hosts"))
    with pytest.raises(StoreAuthError, match="known_hosts"):
        open_store(place, {"password": sftp.password}).get("k")


def test_a_password_in_an_address_is_refused(sftp):
    with pytest.raises(StoreError, match="no user or password") as caught:
        open_store(f"sftp://trainer:canary@127.0.0.1:{sftp.port}/x")
    assert "canary" not in str(caught.value)


def test_a_file_appears_whole_or_not_at_all(sftp, place, tmp_path):
    """sshfs writes in place: a reader would see the beginning of a file, and a failure would leave it."""
    store = open_store(place, {"password": sftp.password})
    store.put("k", b"old")
    with pytest.raises(StoreError):
        store.put_file("k", tmp_path / "absent")
    with pytest.raises(StoreError):
        store.put_file("k", tmp_path)  # a folder: the transfer fails after its start
    assert store.get("k") == b"old"
    assert [info.key for info in store.list()] == ["k"]
    folder = sftp.folder / place.rpartition("/")[2]
    assert [path.name for path in folder.iterdir()] == ["k"], "no temporary file is left"


def test_a_temporary_file_of_a_killed_writer_is_found_and_removed(sftp, place):
    store = open_store(place, {"password": sftp.password})
    store.put("w/k", b"whole")
    name = ".shard.00000.mds.0123456789abcdef.smalti-tmp"
    store.put(f"w/{name}", b"half")
    [probe] = [info for info in store.list() if info.key == "w/k"]
    found = list(store.unfinished_uploads())
    assert found == list(store.unfinished_uploads("w"))
    assert found == [UnfinishedUpload("w/shard.00000.mds", name, found[0].begun, 4, is_temporary=True)]
    assert 0 <= found[0].begun - probe.changed < 60
    for _ in range(2):  # the second time is a no-op
        store.abort_upload(found[0])
    assert list(store.unfinished_uploads()) == list(store.unfinished_uploads("absent")) == []
    assert [info.key for info in store.list()] == ["w/k"]


def test_a_range_requests_no_more_bytes_than_it_has(sftp, place):
    """sshfs itself reads the whole file, whatever the range."""
    store = open_store(place, {"password": sftp.password})
    store.put("k", bytes(range(200)))
    assert store.get_range("k", 100, 103) == b"\x64\x65\x66"
    filesystem = store._connection.get()
    assert filesystem.cat_file(f"/{place.rpartition('/')[2]}/k", start=198) == b"\xc6\xc7"


def test_a_server_whose_rename_replaces_is_detected(sftp, place):
    """rclone's rename replaces; OpenSSH's refuses, as the protocol requires."""
    store = open_store(place, {"password": sftp.password})
    with pytest.raises(StoreError, match="ignores conditional puts"):
        store.check_exclusive_puts("_versions")
    assert list(store.list()) == []


def test_an_unreachable_server_fails_early(place):
    begin = time.monotonic()
    with pytest.raises(StoreError, match=r"sftp://trainer@127\.0\.0\.1:9/x"):
        open_store("sftp://trainer@127.0.0.1:9/x", {"password": "not-shown"}).get("k")
    assert time.monotonic() - begin < 40
