"""Secrets in an archive's address are never shown, and its signature is not part of the source's identity."""

import logging

import pytest

from smalti.errors import FormatError, SmaltiError
from smalti.sources.archive import ArchiveLimits, ArchiveSource, describe_archive, fetch_archive
from smalti.sources.image_folder import list_images
from tests.sources.archives import RawServer, redirect, reply, tar_bytes, whole
from tests.storage.test_secrets import everything_shown

CANARY = "CANARYcanary"
TGZ = tar_bytes()
SIGNED = {
    "Azure": f"sv=2024-11-04&se=2099-01-01T00%3A00%3A00Z&sr=b&sp=r&sig={CANARY}%2Bx%3D",
    "S3": f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={CANARY}&X-Amz-Date=20990101T000000Z&X-Amz-Expires=60"
    f"&X-Amz-SignedHeaders=host&X-Amz-Signature={CANARY}",
    "a token": f"token={CANARY}",
    "an unknown name": f"whatever={CANARY}",
    "no name": CANARY,
    "encoded": f"dl=1%26sig%3D{CANARY}",
}


def sees_all(tmp_path, caplog, capfd, error=None):
    """Return all bytes that were written, logged, printed or raised."""
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    output = capfd.readouterr()
    shown = [str(path).encode() + path.read_bytes() for path in files]
    shown += [caplog.text.encode(), output.out.encode(), output.err.encode(), everything_shown(error).encode()]
    return b"\n".join(shown).decode("utf-8", "replace")


def everything(tmp_path, caplog, capfd, error):
    found = sees_all(tmp_path, caplog, capfd, error or SmaltiError("none"))
    assert CANARY not in found, found


@pytest.fixture(autouse=True)
def all_logs(caplog):
    caplog.set_level(logging.DEBUG)


ANSWERS = {
    "the archive": whole(TGZ),
    "a refusal that repeats it": reply(b"", "Content-Length: 0", status=f"403 no {CANARY}"),
    "a missing file": reply(b"", "Content-Length: 0", status="404 Not Found"),
    "a length that repeats it": reply(b"", f"Content-Length: {CANARY}"),
    "no answer": f"{CANARY} {CANARY}\r\n\r\n".encode(),
    "a redirect by FTP": redirect(f"ftp://u:{CANARY}@127.0.0.1:9/x.tgz?sig={CANARY}"),
    "a redirect to a refusal": redirect(f"/refused.tgz?X-Amz-Signature={CANARY}"),
    "a redirect to a file": redirect(f"file:///x?sig={CANARY}"),
    "half of it": reply(TGZ[:-9]),
    "fewer bytes than declared": reply(TGZ, "Content-Length: 99999"),
}
RETRIED = {"fewer bytes than declared"}  # until the deadline


@pytest.mark.parametrize(
    ("signed", "answer"),
    [(signed, answer) for signed in SIGNED for answer in ANSWERS if signed == "no name" or answer not in RETRIED],
)
def test_no_part_of_a_signature_is_shown_for_any_response(tmp_path, caplog, capfd, answer, signed):
    answers = {"/x.tgz": ANSWERS[answer], "/refused.tgz": ANSWERS["a refusal that repeats it"]}
    error = None
    with RawServer(answers) as server:
        try:
            limits = ArchiveLimits(download_timeout=5 if answer in RETRIED else 60)
            fetch_archive(f"{server.url}/x.tgz?{SIGNED[signed]}#{CANARY}", tmp_path / "unpacked", limits=limits)
        except SmaltiError as caught:
            error = caught
            assert f"{server.url}/x.tgz?***" in str(error)
        assert any(CANARY in path for path in server.seen), "the server did get it"
    assert (error is None) == (answer == "the archive")
    everything(tmp_path, caplog, capfd, error)


ADDRESSES = [
    f"http://user:{CANARY}@127.0.0.1:9/x.tgz",
    f"http://user:{CANARY}/x@y@127.0.0.1:9/x.tgz",
    f"https://{CANARY}@127.0.0.1:9/x.tgz",
    f"http://127.0.0.1:9/x.tgz?sig={CANARY}",
    f"http://127.0.0.1:9/x.tgz#sig={CANARY}",
    f"http://127.0.0.1:9/x?sig={CANARY}",
    f"http://127.0.0.1:9/x.tgz%3Fsig%3D{CANARY}",
    f"http://[::1/x.tgz?sig={CANARY}",
    f"http://a..b/x.tgz?sig={CANARY}",
    f"http:/user:{CANARY}@host/x.tgz",
    f"s3:/KEY:{CANARY}@bucket/x.tgz",
    f"s3:/KEY:SECR/{CANARY}/ET@bucket/x.tgz",
    f"s3://KEY:{CANARY}@bucket/x.tgz",
    f"s3://{CANARY}@bucket/x.tgz",
    f"s3://bucket/x.tgz?X-Amz-Signature={CANARY}",
    f"s3://bucket/x#sig={CANARY}/x.tgz",
    f"abfs://container/x.tgz?sv=2024&sig={CANARY}",
    f"dbfs:/Volumes/c/s/v/x.tgz?token={CANARY}",
    f"dbfs:/Volumes/c/s/v/x.tgz#token={CANARY}",
    f"/Volumes/c/s/v/x.tgz?token={CANARY}",
    f"ftp://user:{CANARY}@host/x.tgz",
    f"host/x.tgz?sig={CANARY}",
    f"https://user:{CANARY}\n@host/x.tgz",
    f"https://user:a {CANARY}@host/x.tgz",
    f"https://user:a'{CANARY}@host/x.tgz",
    f"https://user%3A{CANARY}%40host/x.tgz",
    f"https:///user:{CANARY}@host/x.tgz",
    f"https:user:{CANARY}@host/x.tgz",
    f"s3:///KEY:{CANARY}@bucket/x.tgz",
    f"//user:{CANARY}@host/x.tgz",
    f"\n'https://host/x.tgz?whatever={CANARY}'",
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("use", [fetch_archive, list_images])
def test_an_address_is_shown_without_its_secret(tmp_path, caplog, capfd, address, use):
    limits = ArchiveLimits(download_timeout=1)
    with pytest.raises(SmaltiError) as caught:
        use(address, tmp_path / "unpacked", limits=limits) if use is fetch_archive else use(address)
    everything(tmp_path, caplog, capfd, caught.value)


def test_these_tests_detect_a_secret(tmp_path, caplog, capfd):
    for leak in ("file", "log", "output", "cause"):
        error = FormatError("x")
        if leak == "file":
            (tmp_path / "x").write_text(CANARY)
        elif leak == "log":
            logging.getLogger("any").debug(CANARY)
        elif leak == "output":
            print(CANARY)
        else:
            error.__cause__ = ValueError(CANARY)
        assert CANARY in sees_all(tmp_path, caplog, capfd, error), leak
        (tmp_path / "x").unlink(missing_ok=True)
        caplog.clear()


def test_the_signature_does_not_change_the_source(tmp_path):
    with RawServer({"/x.tgz": whole(TGZ)}) as server:
        first = fetch_archive(f"{server.url}/x.tgz?{SIGNED['Azure']}", tmp_path)
        again = f"{server.url}/x.tgz?sp=r&sv=2025-01-05&se=2100-01-01&sr=b&sig=another"
        assert fetch_archive(again, tmp_path) == first
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("address", "other", "is_same"),
    [
        ("http://h/x.tgz", "http://h/x.tgz?sig=1&sv=2", True),
        ("http://h/x.tgz?Signature=1&Expires=2&AWSAccessKeyId=3", "http://h/x.tgz", True),
        ("http://h/x.tgz?Policy=1&Signature=2&Key-Pair-Id=3", "http://h/x.tgz", True),
        ("http://h/x.tgz?X-Goog-Signature=1&X-Goog-Date=2", "http://h/x.tgz?X-Goog-Signature=3", True),
        ("http://h/x.tgz#a", "http://h/x.tgz#b", True),
        ("http://h/x.tgz?id=1&sig=1", "http://h/x.tgz?sig=2&id=1", True),
        ("http://h/x.tgz?id=1&sig=1", "http://h/x.tgz?id=2&sig=1", False),
        ("http://h/x.tgz?versionId=1&X-Amz-Signature=1", "http://h/x.tgz?versionId=2&X-Amz-Signature=1", False),
        ("http://h/x.tgz?se=1", "http://h/x.tgz?se=2", False),
        ("http://h/x.tgz?token=1", "http://h/x.tgz?token=2", False),
        ("http://h/x.tgz", "http://h/y.tgz", False),
        ("s3://b/x#1/x.tgz", "s3://b/x#2/x.tgz", False),
    ],
)
def test_only_parameters_of_the_signature_are_ignored_when_sources_are_compared(address, other, is_same):
    """A parameter that may identify the file is kept: to confuse two archives would give wrong data."""
    assert (ArchiveSource.parse(address).digest == ArchiveSource.parse(other).digest) is is_same


def test_descriptions_have_no_secrets_and_differ_between_archives():
    """Automation compares descriptions: a new signature must not look like a new source."""
    assert describe_archive(f"https://h/x.tgz?sv=1&sig={CANARY}") == "https://h/x.tgz"
    assert describe_archive("https://h/x.tgz?X-Amz-Date=2&X-Amz-Signature=3") == "https://h/x.tgz"
    first, second = (describe_archive(f"https://h/x.tgz?id={CANARY}{number}&sig=1") for number in (1, 2))
    assert first.startswith("https://h/x.tgz?*** (")
    assert CANARY not in first
    assert first != second
    assert first == describe_archive(f"https://h/x.tgz?sig=2&id={CANARY}1")
    assert CANARY not in describe_archive(f"https://h/x;sig={CANARY}/x.tgz")
    assert describe_archive("/data/x.tgz") == "/data/x.tgz"


def test_the_repr_of_a_source_does_not_contain_its_address():
    source = ArchiveSource.parse(f"http://h/x.tgz?sig={CANARY}")
    assert CANARY not in f"{source!r} {source}"
