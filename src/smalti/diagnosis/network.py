"""Checks of the way to a server, without credentials: its name, proxy, connection, certificate, clock and region."""

import base64
import http.client
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from smalti.diagnosis.findings import Finding, State, one_line
from smalti.storage.probe import MAX_SKEW_SECONDS
from smalti.storage.redact import redact_address

CONNECT_SECONDS = 10.0
"""Time limit to connect, and again for the answer."""
MAX_CLOCK_SECONDS = 30.0
"""Difference of the clocks that is worth a warning: logs and ages of objects are then misleading."""
_PORTS = {"https": 443, "http": 80, "sftp": 22}
_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Variables that name a file of certificate authorities, as clients of stores read them."""


@dataclass
class Route:
    """The way to one server."""

    endpoint: str
    """URL of the server."""
    path: str = "/"
    """Path of the request that is tried; its answer may be a refusal."""
    bundle: str | None = None
    """File of certificate authorities; None for that of the variables, else the system's."""
    is_verified: bool = True
    """False if the caller turned the check of certificates off."""
    given_proxy: str | None = None
    """Address of the proxy in the storage options; None for that of the environment."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the answer; empty before there is one."""
    seconds: float = 0.0
    """Time from the request to its answer."""

    @property
    def host(self) -> str:
        """Name or address of the server."""
        return self.parts.hostname or ""

    @property
    def port(self) -> int:
        """Port of the server."""
        return self.parts.port or _PORTS.get(self.parts.scheme, 443)

    @property
    def parts(self) -> SplitResult:
        """The URL, split."""
        return urlsplit(self.endpoint)

    @property
    def proxy(self) -> SplitResult | None:
        """The proxy that the storage options name, or the environment for this server."""
        address = self.given_proxy or getproxies().get(self.parts.scheme)
        if not address or (not self.given_proxy and proxy_bypass(self.host)):
            return None
        return urlsplit(address if "://" in address else f"http://{address}")


def check_route(route: Route) -> Iterator[Finding]:
    """Yield what is found on the way to a server, up to the first fault; its answer is in `route.headers`."""
    try:
        proxy, port = route.proxy, route.port
    except ValueError as error:
        text = f"{redact_address(route.endpoint)} is not an address: {one_line(error)}"
        yield Finding("network", State.FAULT, text, "write the endpoint as https://host:port")
        return
    if proxy is not None:
        shown = f"{proxy.hostname}:{proxy.port or 80}"
        yield Finding("proxy", State.OK, f"{route.host} is reached through {shown}")
    fault = _connect(route, proxy)
    if fault is not None:
        yield fault
        return
    where = f"{route.host}:{port}"
    if route.parts.scheme == "sftp":
        yield Finding("network", State.OK, f"{where} accepts connections")
        return
    yield Finding("network", State.OK, f"{where} answers in {route.seconds * 1000:,.0f} ms")
    if route.parts.scheme == "https":
        text = "trusted" if route.is_verified else "not checked, as the storage options say"
        yield Finding("certificate", State.OK if route.is_verified else State.WARNING, text)
    yield from _clock(route.headers.get("date", ""))


def _connect(route: Route, proxy: SplitResult | None) -> Finding | None:
    """Send one request, and return the fault that prevents an answer."""
    host, port = (route.host, route.port) if proxy is None else (str(proxy.hostname), proxy.port or 80)
    where = f"{host}:{port}" + ("" if proxy is None else f" (the proxy for {route.host})")
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if route.parts.scheme == "sftp":
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        else:
            _request(route, proxy)
    except (socket.gaierror, UnicodeError):  # the latter for labels that are too long
        text = f"the name {host} cannot be resolved"
        remedy = "check the spelling of the endpoint or region, the DNS server, and the VPN"
    except ssl.SSLCertVerificationError as error:
        return _untrusted(route, error)
    except ssl.SSLError as error:
        text = f"{where} does not speak TLS as expected: {error.reason or one_line(error)}"
        remedy = "check whether the endpoint should begin with http://, and the proxy"
    except FileNotFoundError:
        text = f"the file of certificate authorities {_bundle_of(route)} does not exist"
        remedy = f"correct the variable that names it ({', '.join(_BUNDLES)}) or the storage option `ca_bundle`"
    except ConnectionRefusedError:
        text, remedy = f"{where} refuses connections", "check the port, and whether the server runs"
    except TimeoutError:
        text = f"{where} does not answer within {CONNECT_SECONDS:.0f} s"
        remedy = "check the firewall, the routes of the network, and whether a proxy is needed (HTTPS_PROXY)"
    except (OSError, http.client.HTTPException) as error:
        text = f"{where}: {one_line(error) or type(error).__name__}"
        remedy = "check the proxy and its login (HTTPS_PROXY)" if proxy else "check the endpoint and the network"
    else:
        return None
    return Finding("proxy" if proxy else "network", State.FAULT, text, remedy)


def _request(route: Route, proxy: SplitResult | None) -> None:
    is_secure, headers = route.parts.scheme == "https", {"User-Agent": "smalti-doctor"}
    host, port = (route.host, route.port) if proxy is None else (str(proxy.hostname), proxy.port or 80)
    if is_secure:
        context = _context(route)
        client: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=CONNECT_SECONDS, context=context
        )
        if proxy is not None:
            client.set_tunnel(route.host, route.port, _proxy_login(proxy))
        path = route.path
    else:
        client = http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        path = route.path if proxy is None else f"http://{route.host}:{route.port}{route.path}"
        headers |= {} if proxy is None else _proxy_login(proxy)
    try:
        client.connect()
        begun = time.monotonic()
        client.request("HEAD", path, headers=headers)
        answer = client.getresponse()
        route.headers = {name.lower(): value for name, value in answer.getheaders()}
        route.seconds = time.monotonic() - begun
    finally:
        client.close()


def _proxy_login(proxy: SplitResult) -> dict[str, str]:
    """Return the header with the login in the proxy's address, if it has one."""
    if not proxy.username:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _context(route: Route) -> ssl.SSLContext:
    context = ssl.create_default_context()
    bundle = _bundle_of(route)
    if bundle and Path(bundle).is_dir():
        context.load_verify_locations(capath=bundle)
    elif bundle:
        context.load_verify_locations(bundle)
    if not route.is_verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _bundle_of(route: Route) -> str | None:
    return route.bundle or next((os.environ[name] for name in _BUNDLES if os.environ.get(name)), None)


def _untrusted(route: Route, error: ssl.SSLCertVerificationError) -> Finding:
    text = f"the certificate of {route.host}:{route.port} is not trusted: {error.verify_message}"
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        remedy = "renew the certificate of the server, and check the clock of this machine"
    elif "match" in error.verify_message:
        remedy = "use a host name that the certificate has, or give the server a certificate with this name"
    else:
        remedy = (
            "if the server or a proxy of your company signed it, name the authority's file: AWS_CA_BUNDLE for S3, "
            "SSL_CERT_FILE for other stores"
        )
    return Finding("certificate", State.FAULT, text, remedy)


def _clock(date: str) -> Iterator[Finding]:
    """Yield the difference between this machine's clock and the date of an answer."""
    try:
        skew = parsedate_to_datetime(date).timestamp() - time.time()
    except (TypeError, ValueError):
        return  # no or no valid date
    text = f"differs from the server's by {abs(skew):.0f} s"
    remedy = "set the clock of this machine, and have it synchronized (NTP)"
    if abs(skew) > MAX_SKEW_SECONDS:
        yield Finding("clock", State.FAULT, f"{text}: stores refuse requests with such a time", remedy)
    elif abs(skew) > MAX_CLOCK_SECONDS:
        yield Finding("clock", State.WARNING, text, remedy)
    else:
        yield Finding("clock", State.OK, text if abs(skew) >= 2 else "agrees with the server's")
