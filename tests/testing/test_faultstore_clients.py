"""The clients that Smalti and its users have, on the fault store: obstore and aiobotocore; and ends of its process."""

import asyncio
import http.client
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faultstore import Toxic

DATA = bytes(range(256)) * 4


def test_obstore_reads_writes_lists_and_keeps_conditions(faults):
    obstore = pytest.importorskip("obstore")
    from obstore.exceptions import AlreadyExistsError, NotModifiedError, PreconditionError
    from obstore.store import S3Store

    store = S3Store(
        "bucket",
        endpoint=faults.url,
        access_key_id="AKIDTEST",
        secret_access_key="SECRET",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    mark = obstore.put(store, "dir/k", DATA)["e_tag"]
    assert bytes(obstore.get_range(store, "dir/k", start=10, end=20)) == DATA[10:20]
    found = obstore.get_ranges(store, "dir/k", starts=[0, 900], ends=[4, 904])
    assert [bytes(part) for part in found] == [DATA[:4], DATA[900:904]]
    head = obstore.head(store, "dir/k")
    assert (head["size"], head["e_tag"]) == (1024, mark)
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "dir/k", b"x", mode="create")
    with pytest.raises(PreconditionError):
        obstore.put(store, "dir/k", b"x", mode={"e_tag": '"other"'})
    obstore.put(store, "dir/k", DATA[::-1], mode={"e_tag": mark})
    with pytest.raises(PreconditionError):
        obstore.get(store, "dir/k", options={"if_match": mark})
    with pytest.raises(NotModifiedError):
        obstore.get(store, "dir/k", options={"if_none_match": obstore.head(store, "dir/k")["e_tag"]})
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "none")
    large = random.randbytes(12 << 20)
    obstore.put(store, "large", large, chunk_size=5 << 20, use_multipart=True)
    assert bytes(obstore.get(store, "large").bytes()) == large
    assert len([entry for entry in faults.log("PUT", "large") if "partNumber" in entry.query]) == 3
    assert sorted(info["path"] for page in obstore.list(store) for info in page) == ["dir/k", "large"]
    obstore.copy(store, "large", "copy")
    obstore.delete(store, ["large", "dir/k"])
    assert [info["path"] for page in obstore.list(store) for info in page] == ["copy"]


def test_aiobotocore_reads_writes_and_keeps_conditions(faults):
    session = pytest.importorskip("aiobotocore.session").get_session()
    from botocore.exceptions import ClientError

    async def refused(call):
        with pytest.raises(ClientError) as caught:
            await call
        return caught.value.response["ResponseMetadata"]["HTTPStatusCode"]

    async def talk():
        made = session.create_client(
            "s3", endpoint_url=faults.url, region_name="x", aws_access_key_id="A", aws_secret_access_key="B"
        )
        async with made as s3:
            of = {"Bucket": "bucket", "Key": "k"}
            mark = (await s3.put_object(**of, Body=DATA, Metadata={"write-id": "w"}))["ETag"]
            reply = await s3.get_object(**of, Range="bytes=5-9")
            assert await reply["Body"].read() == DATA[5:10]
            assert reply["Metadata"] == {"write-id": "w"}
            assert (await s3.head_object(**of, IfMatch=mark))["ContentLength"] == 1024
            assert await refused(s3.head_object(**of, IfNoneMatch=mark)) == 304
            assert await refused(s3.head_object(**of, IfMatch='"other"')) == 412
            assert await refused(s3.get_object(**of, IfNoneMatch=mark)) == 304
            assert await refused(s3.get_object(**of, Range="bytes=2000-")) == 416
            assert await refused(s3.put_object(**of, Body=b"x", IfNoneMatch="*")) == 412
            assert await refused(s3.get_object_tagging(**of)) == 501
            name = (await s3.create_multipart_upload(**of))["UploadId"]
            under_way = await s3.list_multipart_uploads(Bucket="bucket")
            assert [(each["Key"], each["UploadId"]) for each in under_way["Uploads"]] == [("k", name)]
            part = await s3.upload_part_copy(
                **of, UploadId=name, PartNumber=1, CopySource=of, CopySourceRange="bytes=0-99"
            )
            parts = {"Parts": [{"PartNumber": 1, "ETag": part["CopyPartResult"]["ETag"]}]}
            await s3.complete_multipart_upload(**of, UploadId=name, MultipartUpload=parts)

    asyncio.run(talk())
    assert faults.get("k") == DATA[:100]


def ask(faults, method="GET", **headers):
    """Status, headers and body of a bare request."""
    connection = http.client.HTTPConnection(faults.url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, "/bucket/k", headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def test_replies_are_what_http_says_of_their_kind(faults):
    faults.put("k", DATA)
    status, headers, _ = ask(faults, Range="bytes=1024-")
    assert (status, headers["Content-Range"]) == (416, "bytes */1024")
    assert ask(faults, Range="bytes=9-5")[0] == 200, "a range that is none is not looked at"
    status, headers, body = ask(faults, **{"If-None-Match": "*"})
    assert (status, headers["Content-Length"], body) == (304, None, b"")
    status, headers, body = ask(faults, "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "1024", b"")
    status, headers, _ = ask(faults, "DELETE")
    assert (status, headers["Content-Length"]) == (204, None)


HOLDER = """
import sys, time
from tests.faultstore import FaultStore
server = FaultStore(own_process=True)
print(server._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.process
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_server_ends_with_the_test_that_was_killed(whole_group):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, start_new_session=True)
    server = int(holder.stdout.readline())
    assert Path(f"/proc/{server}").exists()
    if whole_group:
        os.killpg(holder.pid, signal.SIGKILL)
    else:
        holder.kill()
    holder.wait(60)
    holder.stdout.close()
    end = time.monotonic() + 60
    while is_running(server) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_running(server)


def is_running(pid):
    """Neither gone nor dead and not yet asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_hundred_connections_that_wait_do_not_hold_up_another(faults):
    faults.put("k", DATA)
    faults.plant(Toxic("latency", seconds=60.0, count=100))
    waiting = [http.client.HTTPConnection(faults.url.removeprefix("http://"), timeout=60) for _ in range(100)]
    for connection in waiting:
        connection.request("GET", "/bucket/k")
    end = time.monotonic() + 60
    while len(faults.log("GET", "k")) < 100 and time.monotonic() < end:
        time.sleep(0.01)
    assert ask(faults)[2] == DATA
    for connection in waiting:
        connection.close()
