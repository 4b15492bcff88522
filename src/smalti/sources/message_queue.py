"""A queue of messages that objects were added or removed: Amazon SQS, fed by the event notifications of a bucket.

The texts of messages are not read: a message says that something has changed, whichever service wrapped it. Every
request has a deadline. SQS may deliver a message twice, and in any order.
"""

import hashlib
import importlib
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from smalti.errors import ArgumentError, StoreError
from smalti.redaction import redact
from smalti.storage.backends.aws_login import with_shared_models
from smalti.storage.redact import detect_secrets, raise_clean
from smalti.storage.retry import CONNECT_SECONDS
from smalti.storage.schemes import load_extra

_BATCH = 10  # SQS's own limit
_READ_SECONDS = 10
_ATTEMPTS = 2
_WAIT_SECONDS = 1  # for a message; with 0 SQS would ask a few of the queue's servers only
_IN_FLIGHT_SECONDS = 60  # until a message that was received, and not deleted, is delivered again
_HOST = re.compile(r"sqs[.-](?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?")


class MessageQueue:
    """A queue at an address such as https://sqs.eu-central-1.amazonaws.com/123456789012/photos.

    AWS's own chain of credentials decides: variables, a profile, or the role of the machine.

    Raises:
        ValueError: the address is not that of a queue.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc or not parts.path.strip("/"):
            raise ArgumentError(
                "a queue must be an address like https://sqs.<region>.amazonaws.com/<account>/<name>, found "
                f"{redact(url)!r}"
            )
        self.url = url
        aws = _HOST.fullmatch(parts.netloc)
        load_extra("botocore")
        config = importlib.import_module("botocore.config").Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
        )
        session = with_shared_models(importlib.import_module("botocore.session").Session())
        region = aws["region"] if aws else session.get_config_variable("region") or "us-east-1"
        address = f"{parts.scheme}://{parts.netloc}"
        self._client = session.create_client("sqs", region_name=region, endpoint_url=address, config=config)

    def peek(self) -> str:
        """Return a digest of the IDs of some waiting messages, which stay in the queue; empty if there are none.

        Raises:
            StoreError: the queue cannot be reached, does not exist, or refuses the credentials.
        """
        return _digest_of(self._receive(visible_after=0))

    def drain(self, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> str:
        """Delete waiting messages until none is left or `seconds` are over; return a digest of their IDs.

        Returns:
            The digest; empty if there was no message.

        Raises:
            StoreError: the queue cannot be reached, does not exist, or refuses the credentials.
        """
        begin, digest = clock(), ""
        while found := self._receive(visible_after=_IN_FLIGHT_SECONDS):
            digest = hashlib.sha256((digest + _digest_of(found)).encode()).hexdigest()
            entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(found)]
            # Those that it fails to delete are delivered again.
            self._call("delete messages of", "delete_message_batch", Entries=entries)
            if clock() - begin >= seconds:
                break
        return digest

    def _receive(self, *, visible_after: int) -> list[dict[str, Any]]:
        reply = self._call(
            "receive messages of",
            "receive_message",
            MaxNumberOfMessages=_BATCH,
            VisibilityTimeout=visible_after,
            WaitTimeSeconds=_WAIT_SECONDS,
        )
        return list(reply.get("Messages", ()))

    def _call(self, action: str, method: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, method)(QueueUrl=self.url, **arguments)
        except Exception as error:  # noqa: BLE001 -- botocore has no common class
            address, secrets = redact(self.url), detect_secrets()
            # Not in a variable: the error's traceback holds this frame, and would be in a cycle with it.
            raise_clean(
                StoreError(
                    f"cannot {action} the queue {address}: {redact(str(error), secrets)}; check that the queue exists, "
                    "and that the credentials may receive and delete its messages (sqs:ReceiveMessage, "
                    "sqs:DeleteMessage)",
                    url=address,
                ),
                error,
                secrets,
            )


def _digest_of(messages: list[dict[str, Any]]) -> str:
    ids = sorted(str(each["MessageId"]) for each in messages)
    return hashlib.sha256("\n".join(ids).encode()).hexdigest() if ids else ""
