"""Azure Blob Storage by adlfs, with the credentials under Azure's own names or under MosaicML's.

Azure identity: tokens of a managed identity, a workload, a service principal or `az login`, by azure-identity.

The credentials are asynchronous, as adlfs wants them, ask a bounded number of times, and say what they looked at.
"""

import functools
import importlib
import logging
import os
import re
from typing import Any

from smalti.errors import StoreAuthError, StoreError
from smalti.storage.redact import HideSecrets
from smalti.storage.retry import CONNECT_SECONDS, LIBRARY_ATTEMPTS, READ_SECONDS
from smalti.storage.schemes import Address, bucket_address, detect, load_extra
from smalti.storage.store import Tagged

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


LOGINS = ("connection_string", "account_key", "sas_token", "credential", "client_id")
"""Options any of which says who we are."""


def make(options: dict[str, Any]) -> Any:
    """A file system for Azure Blob Storage."""
    defaults: dict[str, Any] = {
        "anon": False,  # adlfs's own default may be anonymous access
        "connection_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }
    fallback = options.pop("fallback_account", None)
    if not any(options.get(name) for name in LOGINS) and not options.get("anon"):
        options = _login_from_environment() | {name: value for name, value in options.items() if value is not None}
    if fallback and not options.get("connection_string"):
        options.setdefault("account_name", fallback)
    return _class()(**(defaults | options))


def _login_from_environment() -> dict[str, Any]:
    """What the environment says; what adlfs would read itself is named here too, so that one order holds for all."""
    connection = detect("AZURE_STORAGE_CONNECTION_STRING")
    if connection:
        return {"connection_string": connection}
    found = {
        "account_name": detect("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME"),
        "account_key": detect("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY"),
        "sas_token": detect("AZURE_STORAGE_SAS_TOKEN"),
    }
    return {name: value for name, value in found.items() if value}


def container_address(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """Return the address abfs://container/prefix or abfs://container@account.dfs.core.windows.net/prefix; pure."""
    container, at, account = host.partition("@")
    if at:
        options.setdefault("account_name", account.split(".")[0])
    return bucket_address(scheme, container, prefix, options)


def account_address(scheme: str, host: str, prefix: str, options: dict[str, Any]) -> Address:
    """Return MosaicML's address azure://account.blob.core.windows.net/container/prefix; pure.

    The variables AZURE_STORAGE_ACCOUNT_NAME and AZURE_ACCOUNT_NAME take precedence over the account.

    Raises:
        StoreError: the container is missing.
    """
    url = f"{scheme}://{host}"
    if not prefix:
        raise StoreError(
            f"{url}: the container is missing; expected {scheme}://<account>/<container>/<prefix>", url=url
        )
    options.setdefault("fallback_account", host.split(".", maxsplit=1)[0])
    return Address("abfs", prefix, f"abfs://{prefix}", options)


@functools.cache
def _class() -> Any:
    adlfs = load_extra("adlfs")

    class BoundedAzureFileSystem(adlfs.AzureBlobFileSystem):  # type: ignore[misc, name-defined]
        """adlfs with few retries: the SDK's own take a minute and a half, and adlfs has no option for them.

        And with one credential of Azure identity where adlfs makes two, of which one is never used or closed.
        """

        def do_connect(self) -> None:
            super().do_connect()
            policy = getattr(getattr(self.service_client, "_config", None), "retry_policy", None)
            if policy is not None:
                policy.total_retries = LIBRARY_ATTEMPTS - 1
                policy.initial_backoff = 0.5
                policy.increment_base = 2

        def _get_default_azure_credential(self, **options: Any) -> tuple[Login, None]:
            return default_login(options), None

        def _get_credential_from_service_principal(self) -> tuple[Login, None]:
            return service_principal(self.tenant_id, self.client_id, self.client_secret), None

        async def _get_tagged(self, path: str) -> Tagged:
            container, blob, _ = self.split_path(path)
            async with self.service_client.get_blob_client(container=container, blob=blob) as client:
                stream = await client.download_blob(**self._timeout_kwargs)
                return Tagged(bytes(await stream.readall()), str(stream.properties.etag))

        async def _put_if_match(self, path: str, data: bytes, etag: str) -> str:
            container, blob, _ = self.split_path(path)
            conditions = importlib.import_module("azure.core").MatchConditions
            async with self.service_client.get_blob_client(container=container, blob=blob) as client:
                answer = await client.upload_blob(
                    data=data,
                    overwrite=True,
                    etag=etag,
                    match_condition=conditions.IfNotModified,
                    **self._timeout_kwargs,
                )
                return str(answer["etag"])

    return BoundedAzureFileSystem
