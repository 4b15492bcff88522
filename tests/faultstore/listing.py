"""ListObjectsV2: prefix, delimiter, pages; and the uploads under way."""

from bisect import bisect_left, bisect_right

from tests.faultstore.messages import Reply, Request, iso_date, tag, url_text, xml_reply
from tests.faultstore.objects import Bucket

_LAST = "\U0010ffff"
"""After every other character, in the order of UTF-8 too."""


def list_uploads(bucket: Bucket, request: Request) -> Reply:
    """The multipart uploads that are under way."""
    prefix = request.query.get("prefix", "")
    found = sorted(
        (upload.key, name, iso_date(upload.begun))
        for name, upload in bucket.uploads.items()
        if upload.key.startswith(prefix)
    )
    uploads = "".join(
        f"<Upload>{tag('Key', key)}{tag('UploadId', name)}{tag('Initiated', begun)}</Upload>"
        for key, name, begun in found
    )
    facts = tag("Bucket", request.bucket) + tag("IsTruncated", "false")
    return xml_reply(f"<ListMultipartUploadsResult>{facts}{uploads}</ListMultipartUploadsResult>")


def list_keys(bucket: Bucket, request: Request) -> Reply:
    """One page of a listing, of objects and of the folders that a delimiter makes."""
    query = request.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    limit, encoded = min(1000, int(query.get("max-keys", "1000"))), query.get("encoding-type") == "url"
    after = query.get("continuation-token") or query.get("start-after", "")
    entries, last = _page(bucket.keys(), prefix, delimiter, after, limit)
    parts = [
        tag("Name", request.bucket), tag("Prefix", url_text(prefix, encoded=encoded)),
        tag("Delimiter", url_text(delimiter, encoded=encoded)), tag("MaxKeys", limit), tag("KeyCount", len(entries)),
        tag("EncodingType", "url") if encoded else "", tag("IsTruncated", "true" if last else "false"),
        tag("NextContinuationToken", last) if last else "",
    ]  # fmt: skip
    for name, is_folder in entries:
        shown = url_text(name, encoded=encoded)
        if is_folder:
            parts.append(f"<CommonPrefixes>{tag('Prefix', shown)}</CommonPrefixes>")
            continue
        stored = bucket.objects[name]
        about = (
            tag("LastModified", iso_date(stored.modified)),
            tag("ETag", f'"{stored.etag}"'),
            tag("Size", len(stored.data)),
        )
        parts.append(f"<Contents>{tag('Key', shown)}{''.join(about)}{tag('StorageClass', 'STANDARD')}</Contents>")
    return xml_reply(
        f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(parts)}</ListBucketResult>'
    )


def _page(keys: list[str], prefix: str, delimiter: str, after: str, limit: int) -> tuple[list[tuple[str, bool]], str]:
    """Return names, whether each is a folder, and the start of the next page ("" on the last page)."""
    entries: list[tuple[str, bool]] = []
    place = bisect_left(keys, prefix.encode(), key=str.encode)
    if after:
        place = max(place, bisect_right(keys, after.encode(), key=str.encode))
    last = ""
    while place < len(keys) and keys[place].startswith(prefix):
        if len(entries) == limit:
            return entries, last
        name = keys[place]
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        if cut >= 0:
            name = name[: cut + len(delimiter)]
            last = name + _LAST  # all of the folder is done
            place = bisect_right(keys, last.encode(), lo=place, key=str.encode)
        else:
            last, place = name, place + 1
        entries.append((name, cut >= 0))
    return entries, ""
