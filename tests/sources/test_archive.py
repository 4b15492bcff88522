"""Archives are unpacked completely and once; hostile and damaged ones are refused without remains."""

import tarfile

import pytest

from smalti.errors import FormatError, StoreError, StoreNotFound, StoreTimeout
from smalti.sources.archive import ArchiveLimits, fetch_archive, is_archive
from smalti.sources.image_folder import list_images
from tests.sources.archives import FILES, RawServer, assert_clean, member, reply, tar_bytes, whole, zip_bytes


def tar(path, files=FILES, mode="w:gz", links=()):
    path.write_bytes(tar_bytes(files, mode, [member(name, tarfile.SYMTYPE, target) for name, target in links]))
    return str(path)


def pack_zip(path, files=FILES):
    path.write_bytes(zip_bytes(files))
    return str(path)


@pytest.fixture
def into(tmp_path):
    return tmp_path / "unpacked"


@pytest.mark.parametrize("suffix", ["tgz", "tar.gz", "tar", "zip"])
def test_every_kind_is_unpacked_down_to_the_class_folders(tmp_path, into, suffix):
    path = tmp_path / f"photos.{suffix}"
    source = pack_zip(path) if suffix == "zip" else tar(path, mode="w" if suffix == "tar" else "w:gz")
    folder = fetch_archive(source, into)
    assert folder.name == "photos"
    assert (folder / "roses" / "2.jpg").read_bytes() == b"two" * 1000
    assert list_images(str(folder)).counts == {"daisy": 1, "roses": 1}


def test_the_same_archive_is_unpacked_once_and_a_changed_one_again(tmp_path, into):
    source = tar(tmp_path / "a.tgz")
    first = fetch_archive(source, into)
    (first / "daisy" / "1.jpg").write_bytes(b"mark")
    assert fetch_archive(source, into) == first
    assert (first / "daisy" / "1.jpg").read_bytes() == b"mark"
    tar(tmp_path / "a.tgz", {"p/x/1.jpg": b"new", "p/y/1.jpg": b"new"})
    assert fetch_archive(source, into) != first


@pytest.mark.parametrize(
    "name", ["../evil.jpg", "/etc/evil.jpg", "a/../../evil.jpg", "a\\..\\..\\evil.jpg", "a//b.jpg"]
)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_no_member_leaves_the_folder(tmp_path, into, name, kind):
    path = tmp_path / f"evil.{kind}"
    source = pack_zip(path, {name: b"x"}) if kind == "zip" else tar(path, {name: b"x"}, mode="w")
    with pytest.raises(FormatError, match="outside the folder"):
        fetch_archive(source, into)
    assert not (tmp_path / "evil.jpg").exists()
    assert_clean(into)


def test_symbolic_links_are_not_unpacked(tmp_path, into):
    source = tar(tmp_path / "links.tgz", links=[("photos/daisy/link.jpg", "/etc/passwd")])
    folder = fetch_archive(source, into)
    assert sorted(path.name for path in (folder / "daisy").iterdir()) == ["1.jpg"]


def test_an_archive_larger_than_its_limits_is_refused(tmp_path, into):
    source = tar(tmp_path / "big.tgz", {"a/zeros.jpg": bytes(5_000_000)})
    with pytest.raises(FormatError, match="larger than the limit"):
        fetch_archive(source, into, limits=ArchiveLimits(max_bytes=1_000_000))
    with pytest.raises(FormatError, match="more than 2 files"):
        fetch_archive(tar(tmp_path / "many.tgz"), into, limits=ArchiveLimits(max_files=2))
    assert_clean(into)


@pytest.mark.parametrize("suffix", ["tgz", "zip"])
@pytest.mark.parametrize("damage", ["text", "cut", "empty"])
def test_a_damaged_archive_is_refused(tmp_path, into, suffix, damage):
    path = tmp_path / f"bad.{suffix}"
    files = {f"p/daisy/{n}.jpg": bytes((n * i) % 251 for i in range(4000)) for n in range(20)}
    pack_zip(path, files) if suffix == "zip" else tar(path, files)
    data = path.read_bytes()
    path.write_bytes({"text": b"<html>404 not found</html>", "cut": data[: len(data) // 2], "empty": b""}[damage])
    with pytest.raises(FormatError, match="is damaged"):
        fetch_archive(str(path), into)
    assert_clean(into)


def test_a_missing_archive_and_another_kind_of_file_are_refused(tmp_path, into):
    with pytest.raises(StoreNotFound, match="no such archive"):
        fetch_archive(str(tmp_path / "none.tgz"), into)
    with pytest.raises(FormatError, match="no archive that can be unpacked"):
        fetch_archive(str(tmp_path / "photo.jpg"), into)


def test_archives_are_recognized_by_their_suffix():
    assert is_archive("https://host/x.TGZ?sig=1")
    assert is_archive("a/b.zip")
    assert not is_archive("s3://bucket/photos")
    assert not is_archive("photos.tgz/")
    assert is_archive("https://host/x.tgz#part")
    assert is_archive("photos?1.tgz")
    assert is_archive("s3://bucket/photos#1.tgz")
    assert not is_archive("https://host/x?name=x.tgz")


@pytest.fixture
def server():
    """A local web server with one archive and two kinds of faults."""
    data = tar_bytes()
    short = reply(data, f"Content-Length: {len(data) + 100}")
    with RawServer({"/photos.tgz": whole(data), "/short.tgz": short}) as running:
        yield running.url


def test_an_archive_is_downloaded(server, into):
    folder = fetch_archive(f"{server}/photos.tgz", into)
    assert list_images(str(folder)).counts == {"daisy": 1, "roses": 1}


def test_a_missing_url_and_a_truncated_download_raise_different_errors(server, into):
    with pytest.raises(StoreNotFound, match="no such file"):
        fetch_archive(f"{server}/missing.tgz", into)
    broken = r"cannot be fetched \(.*(broke at byte|Not enough data)|not complete within"
    with pytest.raises(StoreError, match=rf"short\.tgz:? ({broken})"):
        fetch_archive(f"{server}/short.tgz", into, limits=ArchiveLimits(download_timeout=1))
    assert_clean(into)


def test_a_download_has_a_deadline(server, into):
    with pytest.raises(StoreTimeout, match=r"photos\.tgz: .*download_timeout"):
        fetch_archive(f"{server}/photos.tgz", into, limits=ArchiveLimits(download_timeout=0))


def test_an_unreachable_server_is_named_in_the_error(into):
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9/x\.tgz(: not complete within| cannot be fetched)"):
        fetch_archive("http://127.0.0.1:9/x.tgz", into, limits=ArchiveLimits(download_timeout=1))
