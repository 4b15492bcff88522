"""Notifications: where a deployment sends them, and the channels themselves.

A channel is an address of a webhook, of Slack's incoming webhooks, or mailboxes. Every request has a deadline, and what
a channel raises names the host and the answer, never the address: that one is the secret.
"""

import http.client
import json
import smtplib
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from smalti.redaction import redact

_TIMEOUT_SECONDS = 10.0
_PORTS = {"starttls": 587, "tls": 465, "none": 25}


class DeliveryError(Exception):
    """A channel did not accept a message; the text is without secrets."""


@dataclass(frozen=True)
class Message:
    """A notification, for people and for programs."""

    title: str
    """One line."""
    text: str
    link: str = ""
    """To the page of the run; empty if the address of the UI is not known."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the JSON that a webhook gets."""


@dataclass(frozen=True)
class Channels:
    """The addresses of notifications; empty ones are not used."""

    webhook: str = ""
    """Takes the message as JSON: title, text, link, and its facts."""
    slack: str = ""
    """URL of an incoming webhook of Slack, or of another chat that takes the same JSON."""
    email: Sequence[str] = ()

    def names(self) -> list[str]:
        """Return the names of the channels that are used."""
        return [name for name in ("webhook", "slack", "email") if getattr(self, name)]


class NotificationsResource(dg.ConfigurableResource[Any]):
    """The channels of a deployment, its mail server, and the address of its UI."""

    webhook: str = Field(default="", description="URL that takes JSON.")
    slack: str = Field(default="", description="URL of an incoming webhook of Slack.")
    email: str = Field(default="", description="Mailboxes, with commas between them.")
    sender: str = Field(default="", description="Sender of e-mail; by default the first of the mailboxes.")
    smtp_host: str = Field(default="", description="Mail server; e-mail needs it.")
    smtp_port: int = Field(default=0, description="By default 587, 465 or 25, as `smtp_security` says.")
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    smtp_user: str = ""
    smtp_password: str = ""
    error_texts: bool = Field(default=False, description="Also of errors that may hold values of rows.")
    ui_url: str = Field(default="", description="Address of Dagster's UI, for links.")
    timeout_seconds: float = _TIMEOUT_SECONDS

    def channels(self) -> Channels:
        """Return the channels of the deployment."""
        mailboxes = [each.strip() for each in self.email.split(",") if each.strip()]
        return Channels(webhook=self.webhook, slack=self.slack, email=mailboxes)

    def link_to(self, run_id: str) -> str:
        """Return the address of a run's page; empty if that of the UI is not known."""
        return f"{self.ui_url.rstrip('/')}/runs/{run_id}" if self.ui_url else ""

    def send(self, name: str, channels: Channels, message: Message) -> None:
        """Send a message to the channel of a name.

        Raises:
            DeliveryError: it was not accepted.
        """
        if name == "email":
            self._mail(channels.email, message)
        elif name == "slack":
            self._post(channels.slack, {"text": _as_slack(message)})
        else:
            content = {"title": message.title, "text": message.text, "link": message.link, **message.facts}
            self._post(channels.webhook, content)

    def _post(self, url: str, content: Mapping[str, Any]) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DeliveryError("the address of the webhook must begin with https:// or http://")
        headers = {"Content-Type": "application/json", "User-Agent": "smalti"}
        data = json.dumps(content).encode()
        try:
            request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310  checked above
            with _OPENER.open(request, timeout=self.timeout_seconds):
                return
        except urllib.error.HTTPError as error:
            error.close()
            fault = f"answered {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:  # their texts may hold the address
            fault = f"is not to be reached ({type(getattr(error, 'reason', error)).__name__})"
        raise DeliveryError(f"{parts.hostname} {fault}")

    def _mail(self, mailboxes: Sequence[str], message: Message) -> None:
        if not self.smtp_host:
            raise DeliveryError("e-mail needs a mail server: set SMALTI_SMTP_HOST")
        mail = EmailMessage()
        mail["Subject"] = " ".join(message.title.split())
        mail["From"] = self.sender or mailboxes[0]
        mail["To"] = ", ".join(mailboxes)
        mail.set_content("\n\n".join(filter(None, [message.text, message.link])))
        port = self.smtp_port or _PORTS[self.smtp_security]
        try:
            with self._server(port) as server:
                if self.smtp_user:
                    server.login(self.smtp_user, self.smtp_password)
                server.send_message(mail)
                return
        except smtplib.SMTPResponseException as error:
            answer = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else ""
            fault = f"answered {error.smtp_code} {redact(answer, [self.smtp_password])[:200]}"
        except smtplib.SMTPRecipientsRefused as error:
            fault = f"refused all {len(error.recipients)} recipients"
        except (OSError, smtplib.SMTPException) as error:
            fault = f"failed ({type(error).__name__}: {redact(str(error), [self.smtp_password])[:200]})"
        raise DeliveryError(f"the mail server {self.smtp_host}:{port} {fault}")

    def _server(self, port: int) -> smtplib.SMTP:
        if self.smtp_security == "tls":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.smtp_host, port, timeout=self.timeout_seconds, context=context)
        server = smtplib.SMTP(self.smtp_host, port, timeout=self.timeout_seconds)
        if self.smtp_security == "starttls":
            try:
                server.starttls(context=ssl.create_default_context())
            except BaseException:
                server.close()
                raise
        return server


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect: the message would become a GET of another address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return nothing, which makes the answer an error."""


_OPENER = urllib.request.build_opener(_NoRedirects)


def _as_slack(message: Message) -> str:
    """Return a message in Slack's markup."""
    title, text = (
        each.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for each in (message.title, message.text)
    )
    return "\n".join(filter(None, [f"*{title}*", text, f"<{message.link}|Open the run>" if message.link else ""]))
