"""What the fault store says without faults is what S3 says: boto3 and curl, and moto beside it as a second opinion."""

import shutil
import subprocess
import urllib.request

import pytest

boto3 = pytest.importorskip("boto3")
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

PART = 5 << 20
KEYS = ["a-b", "a/b", "a/c/d", "ab", "z ü%+&=", "é"]


@pytest.fixture(scope="module")
def moto():
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def client():
    """Makes clients, and closes them."""
    made = []

    def make(url, **options):
        made.append(boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1",
            aws_access_key_id="AKIDTEST", aws_secret_access_key="SECRET",
            config=Config(retries={"total_max_attempts": 1}, **options),
        ))  # fmt: skip
        return made[-1]

    yield make
    for each in made:
        each.close()


def said(call, *names):
    """What a call answers: chosen fields, or the error's status and code."""
    try:
        reply = call()
    except ClientError as error:
        code = error.response["Error"]["Code"]
        return error.response["ResponseMetadata"]["HTTPStatusCode"], code
    if "Body" in reply:
        reply["Body"] = reply["Body"].read()
    return reply["ResponseMetadata"]["HTTPStatusCode"], *(reply.get(name) for name in names)


def conversation(s3):
    """The answers to one list of calls; every one of them stands in the AWS documentation too."""
    b = {"Bucket": "conversation"}
    s3.create_bucket(**b)
    k = {**b, "Key": "dir/k"}
    yield "put", said(lambda: s3.put_object(**k, Body=b"0123456789", Metadata={"write-id": "w1"}), "ETag")
    etag = s3.head_object(**k)["ETag"]
    yield "head", said(lambda: s3.head_object(**k), "ETag", "ContentLength", "Metadata", "AcceptRanges")
    yield "get", said(lambda: s3.get_object(**k), "Body", "ETag", "ContentLength", "Metadata")
    for span in ("0-0", "2-4", "8-99", "-3", "5-", "10-", "99-100"):
        part = said(
            lambda span=span: s3.get_object(**k, Range=f"bytes={span}"), "Body", "ContentRange", "ContentLength"
        )
        yield f"range {span}", part
    yield "if-match", said(lambda: s3.get_object(**k, IfMatch=etag), "Body")
    yield "if-match other", said(lambda: s3.get_object(**k, IfMatch='"other"'))
    yield "if-none-match", said(lambda: s3.get_object(**k, IfNoneMatch=etag))[0]
    yield "create again", said(lambda: s3.put_object(**k, Body=b"x", IfNoneMatch="*"))
    yield "replace other", said(lambda: s3.put_object(**k, Body=b"x", IfMatch='"other"'))
    yield "replace", said(lambda: s3.put_object(**k, Body=b"new", IfMatch=etag), "ETag")
    yield "now", said(lambda: s3.get_object(**k), "Body", "Metadata")
    yield "missing", said(lambda: s3.get_object(**b, Key="no/such"))
    yield "missing head", said(lambda: s3.head_object(**b, Key="no/such"))
    yield "missing bucket", said(lambda: s3.get_object(Bucket="no-such", Key="k"))
    yield "copy", said(lambda: s3.copy_object(**b, Key="copy", CopySource=k))
    yield "copied", said(lambda: s3.get_object(**b, Key="copy"), "Body")
    yield "delete", said(lambda: s3.delete_object(**k))
    yield "delete again", said(lambda: s3.delete_object(**k))
    s3.delete_object(**b, Key="copy")
    for key in KEYS:
        s3.put_object(**b, Key=key, Body=key.encode())
    for options in ({}, {"Prefix": "a"}, {"Delimiter": "/"}, {"Prefix": "a/", "Delimiter": "/"}, {"Prefix": "none"}):
        found = s3.list_objects_v2(**b, **options)
        yield (
            f"list {options}",
            (
                [(entry["Key"], entry["Size"], entry["ETag"]) for entry in found.get("Contents", [])],
                [entry["Prefix"] for entry in found.get("CommonPrefixes", [])],
                found["KeyCount"],
                found["IsTruncated"],
            ),
        )
    pages = s3.get_paginator("list_objects_v2").paginate(**b, PaginationConfig={"PageSize": 2})
    yield "pages", [[entry["Key"] for entry in page["Contents"]] for page in pages]
    yield "after", [entry["Key"] for entry in s3.list_objects_v2(**b, StartAfter="a/b")["Contents"]]
    m = {**b, "Key": "multi"}
    name = s3.create_multipart_upload(**m, Metadata={"write-id": "w2"})["UploadId"]
    bodies = (b"1" * PART, b"2" * PART, b"3" * 7)
    marks = [
        s3.upload_part(**m, UploadId=name, PartNumber=number, Body=body)["ETag"]
        for number, body in enumerate(bodies, 1)
    ]
    yield "not yet", said(lambda: s3.head_object(**m))
    parts = {"Parts": [{"PartNumber": number, "ETag": mark} for number, mark in enumerate(marks, 1)]}
    yield "complete", said(lambda: s3.complete_multipart_upload(**m, UploadId=name, MultipartUpload=parts), "ETag")
    yield "tail", said(lambda: s3.get_object(**m, Range=f"bytes={2 * PART - 1}-"), "Body", "Metadata")
    gone = s3.create_multipart_upload(**m)["UploadId"]
    yield "abort", said(lambda: s3.abort_multipart_upload(**m, UploadId=gone))
    many = {"Objects": [{"Key": key} for key in KEYS]}
    yield "delete many", sorted(entry["Key"] for entry in s3.delete_objects(**b, Delete=many)["Deleted"])
    yield "left", [entry["Key"] for entry in s3.list_objects_v2(**b)["Contents"]]


@pytest.mark.slow
def test_boto3_hears_from_the_fault_store_what_it_hears_from_moto(faults, moto, client):
    ours, theirs = (dict(conversation(client(url))) for url in (faults.url, moto))
    assert ours == theirs
    assert ours["range -3"] == (206, b"789", "bytes 7-9/10", 3)
    assert ours["create again"] == (412, "PreconditionFailed")
    assert ours["pages"] == [["a-b", "a/b"], ["a/c/d", "ab"], ["z ü%+&=", "é"]]


@pytest.mark.parametrize("checksums", ["when_required", "when_supported"])
def test_boto3_transfers_large_files_in_parts(faults, client, checksums, tmp_path):
    s3 = client(faults.url, request_checksum_calculation=checksums, response_checksum_validation=checksums)
    data = bytes(range(256)) * (20 << 12)  # 20 MiB: three parts of boto3's 8 MiB
    (tmp_path / "f").write_bytes(data)
    s3.upload_file(str(tmp_path / "f"), "bucket", "f")
    s3.download_file("bucket", "f", str(tmp_path / "g"))
    assert (tmp_path / "g").read_bytes() == data
    assert len([entry for entry in faults.log("PUT") if "partNumber" in entry.query]) == 3
    assert faults.get("f") == data


def test_a_bucket_may_be_the_host(faults):
    faults.put("dir/k", b"1")
    request = urllib.request.Request(f"{faults.url}/dir/k", headers={"Host": "bucket.localhost:80"})
    with urllib.request.urlopen(request) as reply:
        assert reply.read() == b"1"


def test_an_upload_that_was_ended_takes_no_part(faults, client):
    """On moto this is an error 500."""
    s3, of = client(faults.url), {"Bucket": "bucket", "Key": "k"}
    name = s3.create_multipart_upload(**of)["UploadId"]
    s3.abort_multipart_upload(**of, UploadId=name)
    assert said(lambda: s3.upload_part(**of, UploadId=name, PartNumber=1, Body=b"1")) == (404, "NoSuchUpload")


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_a_presigned_address_is_signed_by_its_key(faults, client, version):
    faults.put("k", b"1")
    s3 = client(faults.url, signature_version=version)
    address = s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    with urllib.request.urlopen(address) as reply:
        assert reply.read() == b"1"
    assert faults.log()[-1].access == "AKIDTEST"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_talks_to_it(faults, tmp_path):
    (tmp_path / "f").write_bytes(b"x" * (3 << 20))

    def curl(*arguments):
        return subprocess.run(["curl", "-sS", *arguments], capture_output=True, check=True, timeout=500).stdout

    curl("-T", str(tmp_path / "f"), f"{faults.url}/bucket/f")  # with Expect: 100-continue
    assert curl("-r", "1-3", f"{faults.url}/bucket/f") == b"xxx"
    assert faults.get("f") == b"x" * (3 << 20)
    assert b"<Key>f</Key>" in curl(f"{faults.url}/bucket?list-type=2")
    assert curl("-o", "/dev/null", "-w", "%{http_code}", f"{faults.url}/bucket/none") == b"404"
    assert [entry.access for entry in faults.log()] == [""] * 4


def test_a_folder_is_served_where_it_lies(tmp_path):
    from tests.faultstore import FaultStore

    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "f").write_bytes(b"0123456789")
    (tmp_path / "empty").touch()
    with FaultStore(folder=tmp_path, own_process=True) as faults:
        store = faults.open()
        assert [(info.key, info.num_bytes) for info in store.list()] == [("empty", 0), ("sub/f", 10)]
        assert store.get_range("sub/f", 2, 5) == b"234"
