"""The channels of notifications, on real servers."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from smalti_dagster.resources.deployment import detect_resources, has_channels
from smalti_dagster.resources.notifications import Channels, DeliveryError, Message, NotificationsResource

MESSAGE = Message("flowers: <model> failed", "Mend the cause & go on.", "http://ui/runs/1", {"run": "1", "step": "s"})
SECRET = "T0CANARY"


class Hook(HTTPServer):
    """A server that keeps what is posted to it, and answers as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: list[tuple[str, Any]] = []
        self.answer = 200

    def url(self, path: str = SECRET) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.taken.append((self.path, content))
        self.send_response(self.server.answer)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serving() as made:
        yield made


@contextmanager
def serving() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(timeout=500)


class Mailbox:
    """A handler of mail that keeps it."""

    def __init__(self) -> None:
        self.mails: list[Any] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802  aiosmtpd's name
        self.mails.append(envelope)
        return "250 OK"


@contextmanager
def mail_server(mailbox: Mailbox, **options: Any) -> Iterator[Controller]:
    with socket.socket() as free:  # the controller wants to know the port before it listens
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Controller(mailbox, hostname="127.0.0.1", port=port, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def test_a_webhook_gets_json_with_all_that_a_program_needs(hook: Hook) -> None:
    NotificationsResource().send("webhook", Channels(webhook=hook.url()), MESSAGE)
    expected = {
        "title": "flowers: <model> failed",
        "text": "Mend the cause & go on.",
        "link": "http://ui/runs/1",
        "run": "1",
        "step": "s",
    }
    assert hook.taken == [(f"/{SECRET}", expected)]


def test_slack_gets_its_own_markup(hook: Hook) -> None:
    NotificationsResource().send("slack", Channels(slack=hook.url()), MESSAGE)
    text = "*flowers: &lt;model&gt; failed*\nMend the cause &amp; go on.\n<http://ui/runs/1|Open the run>"
    assert hook.taken == [(f"/{SECRET}", {"text": text})]


@pytest.mark.parametrize(("answer", "fault"), [(500, "answered 500"), (404, "answered 404"), (302, "answered 302")])
def test_a_refusal_is_an_error_that_names_the_host_and_not_the_address(hook: Hook, answer: int, fault: str) -> None:
    hook.answer = answer
    with pytest.raises(DeliveryError) as caught:
        NotificationsResource().send("slack", Channels(slack=hook.url()), MESSAGE)
    assert str(caught.value) == f"127.0.0.1 {fault}"
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert len(hook.taken) == 1


@pytest.mark.parametrize("address", [f"http://127.0.0.1:1/{SECRET}", f"ftp://host/{SECRET}", f"http://a b/{SECRET}"])
def test_an_address_that_cannot_be_reached_is_not_told_either(address: str) -> None:
    with pytest.raises(DeliveryError) as caught:
        NotificationsResource().send("webhook", Channels(webhook=address), MESSAGE)
    assert SECRET not in str(caught.value)


def test_a_server_that_does_not_answer_is_given_up_at_the_deadline() -> None:
    with Hook() as silent, pytest.raises(DeliveryError, match="not to be reached"):  # it listens, and serves nothing
        NotificationsResource(timeout_seconds=0.2).send("webhook", Channels(webhook=silent.url()), MESSAGE)


def test_mail_goes_to_all_mailboxes_with_subject_and_link() -> None:
    mailbox = Mailbox()
    with mail_server(mailbox) as server:
        mail = NotificationsResource(smtp_host="127.0.0.1", smtp_port=server.port, smtp_security="none")
        mail.send("email", Channels(email=["a@example.com", "b@example.com"]), MESSAGE)
    [envelope] = mailbox.mails
    assert envelope.rcpt_tos == ["a@example.com", "b@example.com"]
    text = envelope.content.decode()
    assert "Subject: flowers: <model> failed" in text
    assert "Mend the cause & go on." in text
    assert "http://ui/runs/1" in text


def test_a_refused_password_is_not_shown() -> None:
    refused = AuthResult(success=False, handled=False, message=f"535 not {SECRET}")
    with mail_server(Mailbox(), auth_require_tls=False, authenticator=lambda *_: refused) as server:
        mail = NotificationsResource(
            smtp_host="127.0.0.1",
            smtp_port=server.port,
            smtp_security="none",
            smtp_user="ana",
            smtp_password=SECRET,
        )
        with pytest.raises(DeliveryError, match=r"the mail server 127\.0\.0\.1:.* answered 535") as caught:
            mail.send("email", Channels(email=["a@example.com"]), MESSAGE)
        assert SECRET not in str(caught.value)


def check_nothing_is_sent(fault: str, **options: Any) -> None:
    """Send a mail, with the settings as they are by default, to a server that must not get it."""
    mailbox = Mailbox()
    with mail_server(mailbox, **options) as server:
        mail = NotificationsResource(smtp_host="127.0.0.1", smtp_port=server.port)
        with pytest.raises(DeliveryError, match=fault):
            mail.send("email", Channels(email=["a@example.com"]), MESSAGE)
    assert mailbox.mails == []


def test_a_mail_server_without_tls_gets_nothing_unless_that_is_allowed() -> None:
    check_nothing_is_sent("STARTTLS")


def test_a_certificate_that_is_not_trusted_is_refused() -> None:
    import trustme

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    check_nothing_is_sent("CERTIFICATE_VERIFY_FAILED", tls_context=context)


def test_mail_without_a_server_says_which_variable_is_missing() -> None:
    with pytest.raises(DeliveryError, match="SMALTI_SMTP_HOST"):
        NotificationsResource().send("email", Channels(email=["a@example.com"]), MESSAGE)


def test_the_environment_configures_the_channels_and_secrets_stay_references() -> None:
    environ = {
        "SMALTI_NOTIFY_WEBHOOK": f"https://hooks/{SECRET}",
        "SMALTI_NOTIFY_SLACK": f"https://slack/{SECRET}",
        "SMALTI_NOTIFY_EMAIL": "a@example.com, b@example.com",
        "SMALTI_NOTIFY_ERROR_TEXTS": "1",
        "SMALTI_SMTP_HOST": "mail.example.com",
        "SMALTI_SMTP_PASSWORD": SECRET,
        "SMALTI_UI_URL": "http://ui/",
    }
    made = detect_resources(environ)["smalti_notifications"]
    assert SECRET not in repr(made)
    assert made.channels().names() == ["webhook", "slack", "email"]
    assert list(made.channels().email) == ["a@example.com", "b@example.com"]
    assert made.link_to("1") == "http://ui/runs/1"
    assert made.error_texts
    assert (has_channels(environ), has_channels({})) == (True, False)
    assert detect_resources({})["smalti_notifications"].channels().names() == []
