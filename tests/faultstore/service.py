"""The S3 subset: objects with ranges and conditions, multipart uploads, listings. No sockets, no faults."""

import re
from collections.abc import Callable
from xml.sax.saxutils import unescape

from tests.faultstore.listing import list_keys, list_uploads
from tests.faultstore.messages import Reply, Request, error_reply, http_date, tag, xml_reply
from tests.faultstore.objects import Bucket, Stored

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_KEY = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_READS = frozenset({"GET", "HEAD"})
_UNKNOWN = frozenset({"acl", "attributes", "legal-hold", "restore", "retention", "tagging", "torrent"})
_ENTITIES = {"&quot;": '"', "&apos;": "'"}


class Service:
    """Buckets, and the answer to each request."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}

    def answer(self, request: Request, *, conditions: bool = True, seen_until: float | None = None) -> Reply:
        """The reply to a request; what it asks for is done when this returns.

        Args:
            request: Whole, its body included.
            conditions: False to ignore If-Match and If-None-Match of writes.
            seen_until: Reads and listings see what was written until then, in seconds since 1970; None for all.
        """
        if not request.bucket:
            names = "".join(f"<Bucket>{tag('Name', name)}</Bucket>" for name in sorted(self.buckets))
            return xml_reply(f"<ListAllMyBucketsResult><Buckets>{names}</Buckets></ListAllMyBucketsResult>")
        if not request.key and request.method == "PUT":
            self.buckets.setdefault(request.bucket, Bucket())
            return Reply()
        bucket = self.buckets.get(request.bucket)
        if bucket is None:
            return error_reply(404, "NoSuchBucket", f"The bucket {request.bucket} does not exist")
        if seen_until is not None:
            bucket = bucket.until(seen_until)
        if not request.key:
            return self._of_bucket(bucket, request)
        if _UNKNOWN & request.query.keys() or (request.method in _READS and "uploadId" in request.query):
            return error_reply(501)  # and not the object itself
        is_write = conditions and request.method not in _READS
        if is_write and (refused := _refused(bucket.objects.get(request.key), request)):
            return refused
        methods: dict[str, Callable[[Bucket, Request], Reply]] = {
            "GET": _get, "HEAD": _get, "PUT": self._put, "POST": _post, "DELETE": _delete,
        }  # fmt: skip
        run = methods.get(request.method)
        return run(bucket, request) if run else error_reply(501)

    def _of_bucket(self, bucket: Bucket, request: Request) -> Reply:
        if request.method == "HEAD":
            return Reply()
        if request.method == "DELETE":
            del self.buckets[request.bucket]
            return Reply(204)
        if request.method == "POST" and "delete" in request.query:
            keys = [unescape(key, _ENTITIES) for key in _KEY.findall(bytes(request.body).decode())]
            for key in keys:
                bucket.delete(key)
            gone = "".join(f"<Deleted>{tag('Key', key)}</Deleted>" for key in keys)
            return xml_reply(f"<DeleteResult>{gone}</DeleteResult>")
        if request.method == "GET" and "location" in request.query:
            return xml_reply("<LocationConstraint/>")
        if request.method == "GET" and "uploads" in request.query:
            return list_uploads(bucket, request)
        if request.method == "GET":
            return list_keys(bucket, request)
        return error_reply(501)

    def _put(self, bucket: Bucket, request: Request) -> Reply:
        upload = bucket.uploads.get(request.query.get("uploadId", ""))
        if "uploadId" in request.query and upload is None:
            return error_reply(404, "NoSuchUpload")
        if source := request.headers.get("x-amz-copy-source"):
            return self._copy(bucket, request, source)
        stored = Stored.of(request.body, _said(request))
        if upload is not None:
            upload.parts[int(request.query["partNumber"])] = stored
        else:
            bucket.put(request.key, stored)
        return Reply(200, {"ETag": f'"{stored.etag}"'})

    def _copy(self, bucket: Bucket, request: Request, source: str) -> Reply:
        origin = Request("GET", f"/{source.lstrip('/')}", {})
        found = self.buckets.get(origin.bucket, Bucket()).objects.get(origin.key)
        if found is None:
            return error_reply(404)
        upload = bucket.uploads.get(request.query.get("uploadId", ""))
        if upload is not None:
            span = _RANGE.fullmatch(request.headers.get("x-amz-copy-source-range", ""))
            begin, end = _span(span[1], span[2], len(found.data)) if span else (0, len(found.data))
            part = Stored.of(found.data[begin:end])
            upload.parts[int(request.query["partNumber"])] = part
            return xml_reply(f"<CopyPartResult>{_mark(part)}</CopyPartResult>")
        is_renamed = request.headers.get("x-amz-metadata-directive", "").upper() == "REPLACE"
        bucket.put(request.key, Stored(found.data, found.etag, _said(request) if is_renamed else found.headers))
        return xml_reply(f"<CopyObjectResult>{_mark(found)}</CopyObjectResult>")


def _get(bucket: Bucket, request: Request) -> Reply:
    """An object or a part of it, or for HEAD its headers."""
    found = bucket.objects.get(request.key)
    if found is None:
        return error_reply(404) if request.method == "GET" else Reply(404)
    if (wanted := request.headers.get("if-match")) and not _is_one_of(found.etag, wanted):
        return error_reply(412)
    headers = {"ETag": f'"{found.etag}"', "Last-Modified": http_date(found.modified), "Accept-Ranges": "bytes"}
    headers |= {"Content-Type": "binary/octet-stream"} | found.headers
    if (known := request.headers.get("if-none-match")) and _is_one_of(found.etag, known):
        return Reply(304, headers)
    reply = Reply(200, headers, found.data)
    span = _RANGE.fullmatch(request.headers.get("range", ""))
    if span and not (span[1] and span[2] and int(span[1]) > int(span[2])):  # a range that is none is not looked at
        begin, end = _span(span[1], span[2], len(found.data))
        if begin >= end:
            refused = error_reply(416)
            refused.headers["Content-Range"] = f"bytes */{len(found.data)}"
            return refused
        reply.status, reply.body = 206, found.data[begin:end]
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(found.data)}"
    return reply


def _post(bucket: Bucket, request: Request) -> Reply:
    """A multipart upload begun or completed."""
    if "uploads" in request.query:
        name = bucket.begin_upload(request.key, _said(request))
        return xml_reply(
            "<InitiateMultipartUploadResult>"
            f"{tag('Bucket', request.bucket)}{tag('Key', request.key)}{tag('UploadId', name)}"
            "</InitiateMultipartUploadResult>"
        )
    name = request.query.get("uploadId", "")
    if name not in bucket.uploads:
        return error_reply(404, "NoSuchUpload")
    numbers = [int(number) for number in re.findall(rb"<PartNumber>\s*(\d+)\s*</PartNumber>", bytes(request.body))]
    try:
        stored = bucket.join_upload(name, numbers)
    except KeyError:
        return error_reply(400, "InvalidPart")
    bucket.put(request.key, stored)
    del bucket.uploads[name]
    return xml_reply(
        "<CompleteMultipartUploadResult>"
        f"{tag('Bucket', request.bucket)}{tag('Key', request.key)}{_mark(stored)}"
        "</CompleteMultipartUploadResult>"
    )


def _delete(bucket: Bucket, request: Request) -> Reply:
    if "uploadId" in request.query:
        return Reply(204) if bucket.uploads.pop(request.query["uploadId"], None) else error_reply(404, "NoSuchUpload")
    bucket.delete(request.key)
    return Reply(204)


def _mark(stored: Stored) -> str:
    return tag("ETag", f'"{stored.etag}"')


def _refused(found: Stored | None, request: Request) -> Reply | None:
    """The refusal of a write whose condition does not hold."""
    if (known := request.headers.get("if-none-match")) and found and (known == "*" or _is_one_of(found.etag, known)):
        return error_reply(412, message="At least one of the pre-conditions you specified did not hold")
    if wanted := request.headers.get("if-match"):
        if found is None:
            return error_reply(404)
        if not _is_one_of(found.etag, wanted):
            return error_reply(412)
    return None


def _is_one_of(etag: str, marks: str) -> bool:
    return any(mark.strip().strip('"') in {etag, "*"} for mark in marks.split(","))


def _span(first: str, last: str, size: int) -> tuple[int, int]:
    """The half-open span that a Range header asks for; empty where nothing of it is there."""
    if not first:
        return (max(0, size - int(last)), size) if last and int(last) else (0, 0)
    return int(first), min(size, int(last) + 1) if last else size


def _said(request: Request) -> dict[str, str]:
    """Return the headers that describe the object."""
    kept = ("content-type", "content-encoding", "cache-control")
    found = {name: value for name, value in request.headers.items() if name in kept or name.startswith("x-amz-meta-")}
    if found.get("content-encoding", "").startswith("aws-chunked"):
        del found["content-encoding"]  # of the way here, not of the object
    return found
