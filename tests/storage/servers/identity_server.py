"""Token servers: the endpoint of App Service's managed identities, over http, and Microsoft Entra, over https."""

import base64
import json
import time
from urllib.parse import parse_qs, urlsplit

from tests.storage.servers.loopback import LoopbackHandler, LoopbackServer

STORAGE = "https://storage.azure.com"
DAY = 86400


class IdentityServer(LoopbackServer):
    """A server of tokens that Azurite accepts; records requests.

    `valid_seconds` has the validity of the next tokens, one each, then a day; `declared_seconds` is the validity in
    responses. `refusal` is the status and text of the next `num_refusals` responses; -1 for all.
    """

    def __init__(self, secret, certificate=None):
        super().__init__(Handler, certificate)
        self.secret = secret
        self.valid_seconds: list[float] = []
        self.declared_seconds: float | None = None
        self.refusal: tuple[int, str] | None = None
        self.num_refusals = -1
        self.requests: list[str] = []
        self.issued: list[str] = []

    def token(self):
        """Return a token and its declared expiry, seconds since 1970."""
        now, good = time.time(), self.valid_seconds.pop(0) if self.valid_seconds else DAY
        claims = {
            "aud": STORAGE,
            "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
            "iat": int(now) - 600,
            "nbf": int(now) - 600,
            "exp": now + good,
        }
        parts = [{"alg": "none", "typ": "JWT"}, claims]
        texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        self.issued.append(".".join([*texts, f"signature{len(self.issued)}"]))
        return self.issued[-1], now + (good if self.declared_seconds is None else self.declared_seconds)


class Handler(LoopbackHandler):
    def get(self):
        query = parse_qs(urlsplit(self.path).query)
        is_known = self.headers.get("X-IDENTITY-HEADER") == self.server.secret and query["resource"] == [STORAGE]
        self.answer(is_known, f"{self.path} {self.headers.get('X-IDENTITY-HEADER')}")

    def post(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        is_known = self.server.secret in (form.get("client_secret"), form.get("client_assertion"))
        self.answer(is_known and form["scope"] == f"{STORAGE}/.default", f"{self.path} {body}")

    do_GET, do_POST = get, post  # noqa: N815 -- http.server names them so

    def answer(self, is_known, request):
        server = self.server
        server.requests.append(request)
        if server.refusal and server.num_refusals:
            server.num_refusals -= 1
            status, text = server.refusal
            return self.send_json(
                status, {"error": "invalid_client", "error_description": f"{text} {request}", "message": request}
            )
        if not is_known:
            return self.send_json(401, {"error": "invalid_client", "error_description": f"AADSTS7000215: {request}"})
        token, until = server.token()
        return self.send_json(
            200,
            {
                "access_token": token,
                "expires_on": str(int(until)),
                "expires_in": int(until - time.time()),
                "resource": STORAGE,
                "token_type": "Bearer",
            },
        )

    def send_json(self, status, answer):
        self.send(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})
