"""The queue of a bucket's events, on moto's SQS."""

import secrets

import pytest

from smalti.errors import StoreError
from smalti.sources import message_queue
from smalti.sources.message_queue import MessageQueue
from tests.storage.conftest import ACCESS, clean_environment, s3_server

__all__ = ["clean_environment", "s3_server"]


@pytest.fixture
def sqs(s3_server, clean_environment):
    """A client, and the address of a new queue."""
    import boto3

    for name, value in ACCESS.items():
        clean_environment.setenv(name, value)
    client = boto3.client("sqs", endpoint_url=s3_server, region_name="us-east-1")
    name = f"q-{secrets.token_hex(6)}"
    client.create_queue(QueueName=name)
    clean_environment.setattr(message_queue, "_WAIT_SECONDS", 0)
    return client, f"{s3_server}/123456789012/{name}"


def waiting(client, url):
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(found["ApproximateNumberOfMessages"]), int(found["ApproximateNumberOfMessagesNotVisible"])


def test_peeking_leaves_messages_and_draining_deletes_them_all(sqs):
    client, url = sqs
    queue = MessageQueue(url)
    assert queue.peek() == queue.drain(seconds=9) == ""
    for number in range(23):
        client.send_message(QueueUrl=url, MessageBody=f"{number}")
    assert queue.peek() != ""
    assert waiting(client, url) == (23, 0)
    assert queue.drain(seconds=9) != ""
    assert waiting(client, url) == (0, 0)
    assert queue.peek() == ""


def test_the_time_for_draining_is_bounded_and_the_rest_stays(sqs):
    client, url = sqs
    for number in range(25):
        client.send_message(QueueUrl=url, MessageBody=f"{number}")
    now = iter([0.0, 1.0, 2.0, 3.0])
    MessageQueue(url).drain(seconds=2, clock=lambda: next(now))
    assert waiting(client, url) == (5, 0)


def test_the_digest_is_that_of_the_ids_of_the_messages(sqs):
    client, url = sqs
    client.send_message(QueueUrl=url, MessageBody="a")
    first = MessageQueue(url).peek()
    assert MessageQueue(url).peek() == first
    client.purge_queue(QueueUrl=url)
    client.send_message(QueueUrl=url, MessageBody="a")
    assert MessageQueue(url).peek() != first


def test_a_queue_that_is_gone_is_named(sqs):
    _, url = sqs
    with pytest.raises(StoreError, match=r"messages of the queue .*/gone: .*check that the queue exists"):
        MessageQueue(url.rpartition("/")[0] + "/gone").peek()


@pytest.mark.parametrize("url", ["photos", "s3://bucket/queue", "https://sqs.eu-central-1.amazonaws.com"])
def test_an_address_that_is_no_queue_is_refused(url):
    with pytest.raises(ValueError, match="must be an address like"):
        MessageQueue(url)


def test_the_region_is_that_of_the_address(clean_environment):
    clean_environment.setenv("AWS_REGION", "us-west-2")
    queue = MessageQueue("https://sqs.eu-central-1.amazonaws.com/123456789012/photos")
    assert queue._client.meta.region_name == "eu-central-1"
