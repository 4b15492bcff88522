"""Azure identity: tokens of a managed identity, a workload, a service principal or `az login`, by azure-identity.

The credentials are asynchronous, as adlfs wants them, ask a bounded number of times, and say what they looked at.
"""

import logging
import os
import re
from typing import Any

from smalti.errors import StoreAuthError
from smalti.storage.extras import CONNECT_SECONDS, READ_SECONDS, load_extra
from smalti.storage.redact import HideSecrets

TOKEN_RETRIES = 2
"""Of one request for a token, with pauses of 1.6 s in all; the library's own ten outlast every deadline."""

VARIABLES = {
    "EnvironmentCredential": (
        "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_USERNAME"
    ),
    "WorkloadIdentityCredential": ("AZURE_FEDERATED_TOKEN_FILE",),
    "ManagedIdentityCredential": ("IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "MSI_SECRET"),
    "": ("AZURE_AUTHORITY_HOST", "AZURE_TOKEN_CREDENTIALS"),
}  # fmt: skip
"""What azure-identity reads, and for which of its credentials."""

_LOGS = ("_credentials.chained", "_internal.decorators", "_internal.get_token_mixin")
"""Loggers of the library that write down, as warnings, whatever a token's server says."""
_HIDING = HideSecrets()
_SPOKEN = 120


class AzureIdentityError(Exception):
    """No token; the text says from whom, and which variables are set."""


class Login:
    """A credential of azure-identity whose failures say what was looked at."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._failure = load_extra("azure.core.exceptions").ClientAuthenticationError

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        """An access token, from memory while it is good.

        Raises:
            AzureIdentityError: nobody gave one.
        """
        try:
            return await self._inner.get_token(*scopes, **options)
        except self._failure as error:
            raise AzureIdentityError(_explained(str(error))) from error

    async def close(self) -> None:
        """End its connections."""
        await self._inner.close()


def default_login(options: dict[str, Any]) -> Login:
    """Whoever this machine, process or user is, by `DefaultAzureCredential`.

    Raises:
        MissingDependency: azure-identity is not installed.
    """
    return Login(_identity().DefaultAzureCredential(**(_bounds() | options)))


def service_principal(tenant_id: str | None, client_id: str | None, client_secret: str | None) -> Login:
    """The service principal of the storage options.

    Raises:
        MissingDependency: azure-identity is not installed.
        StoreAuthError: one of the three is missing.
    """
    given = {"tenant_id": tenant_id, "client_id": client_id, "client_secret": client_secret}
    missing = [name for name, value in given.items() if not value]
    if missing:
        raise StoreAuthError(
            f"a service principal of Azure needs the storage options {list(given)}; {missing} "
            f"{'is' if len(missing) == 1 else 'are'} missing. For a managed identity of its own id pass "
            "`managed_identity_client_id` instead",
            missing=missing,
        )
    return Login(_identity().ClientSecretCredential(**given, **_bounds()))


def _identity() -> Any:
    identity = load_extra("azure.identity.aio")
    for name in _LOGS:
        logging.getLogger(f"azure.identity.aio.{name}").addFilter(_HIDING)  # once, however often
    return identity


def _bounds() -> dict[str, Any]:
    return {"retry_total": TOKEN_RETRIES, "connection_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}


def _explained(said: str) -> str:
    """The variables that are set, and in short what each credential says; first those that were meant to work."""
    names = [name for group in VARIABLES.values() for name in group]
    found = [name for name in names if os.environ.get(name)]
    lines = [" ".join(line.split()) for line in re.findall(r"\b(\w+Credential: [^\n]+)", said)]
    lines = lines or [" ".join(said.split())]
    meant = [line for line in lines if set(VARIABLES.get(line.partition(":")[0], ())) & set(found)]
    others = [line for line in lines if line not in meant]
    spoken = "; ".join(line[:_SPOKEN] for line in (*meant, *others))
    return f"Azure identity gave no token, with the variables {found or 'of none of its logins'} set: {spoken}"
