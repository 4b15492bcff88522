"""Requests and replies as values, and the XML that S3 puts into replies. No I/O."""

from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

from tests.faultstore.objects import Buffer

_REASONS = {
    200: "OK", 204: "No Content", 206: "Partial Content", 301: "Moved Permanently", 304: "Not Modified",
    307: "Temporary Redirect", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    409: "Conflict", 411: "Length Required", 412: "Precondition Failed", 416: "Range Not Satisfiable",
    429: "Too Many Requests", 500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
CODES = {
    307: "TemporaryRedirect", 400: "BadRequest", 401: "Unauthorized", 403: "AccessDenied", 404: "NoSuchKey",
    409: "ConditionalRequestConflict", 411: "MissingContentLength", 412: "PreconditionFailed", 416: "InvalidRange",
    429: "TooManyRequests", 500: "InternalError", 501: "NotImplemented", 503: "SlowDown",
}  # fmt: skip
"""S3's error code for a status without a specific one."""
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'


@dataclass
class Request:
    """A client's request."""

    method: str
    target: str
    headers: dict[str, str]
    """By lower-case name."""
    body: Buffer = b""
    bucket: str = ""
    key: str = ""
    query: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Bucket and key, from a path (`/bucket/key`) or from a virtual host (`bucket.localhost`)."""
        path, _, query = self.target.partition("?")
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        host = self.headers.get("host", "").rpartition(":")[0] or self.headers.get("host", "")
        full = unquote(path).removeprefix("/")
        if host.endswith(".localhost"):
            self.bucket, self.key = host.removesuffix(".localhost"), full
        else:
            self.bucket, _, self.key = full.partition("/")

    @property
    def access(self) -> str:
        """The access key that signed it; "" for an anonymous request."""
        query = self.query.get("X-Amz-Credential") or self.query.get("AWSAccessKeyId", "")
        return (self.headers.get("authorization", "").partition("Credential=")[2] or query).partition("/")[0]


@dataclass
class Reply:
    """The answer to a request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Buffer = b""

    def head(self, *, closes: bool) -> bytes:
        """Status line and headers; Content-Length is that of the body unless it is set."""
        size = {} if self.status in {204, 304} else {"Content-Length": str(len(self.body))}
        headers = size | {"Server": "faultstore"} | self.headers
        headers["Connection"] = "close" if closes else "keep-alive"
        lines = [f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Status')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def xml_reply(text: str, status: int = 200) -> Reply:
    """A reply with a document."""
    return Reply(status, {"Content-Type": "application/xml"}, (_XML + text).encode())


def error_reply(status: int, code: str = "", message: str = "") -> Reply:
    """An error as S3 words it."""
    code = code or CODES.get(status, "InternalError")
    return xml_reply(
        f"<Error><Code>{escape(code)}</Code><Message>{escape(message or code)}</Message>"
        "<RequestId>0</RequestId></Error>",
        status,
    )


def http_date(seconds: float) -> str:
    """As in `Last-Modified`."""
    return formatdate(seconds, usegmt=True)


def iso_date(seconds: float) -> str:
    """As in listings."""
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def tag(name: str, value: object) -> str:
    """One element."""
    return f"<{name}>{escape(str(value))}</{name}>"


def url_text(text: str, *, encoded: bool) -> str:
    """A key as a listing shows it: `encoding-type=url` or plain."""
    return quote(text, safe="/~-._") if encoded else text
